"""Installation of add-ons in a control plane: by server-side apply, with an inventory, pruning, and separate failures.

The operator uses the tenant's own API for all changes. An object that exists and belongs to no add-on is the tenant's,
and the operator does not adopt it. The operator deletes only objects that are in an inventory and have the add-on's
label. So a user who may write inventories cannot make the operator delete other objects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kplane.api.names import ADDON_LABEL, GROUP, label_value
from kplane.controlplane_operator.addons.discovery import Discovery
from kplane.controlplane_operator.addons.inventory import FIELD_MANAGER, Inventory
from kplane.controlplane_operator.addons.manifest import CRD_KIND, FOUNDATION, Bundle, ObjectId, identify, rank
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import ApiError, Client, Invalid, NotFound, ProviderError, Resource, Unreachable
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS
from kplane.provider.errors import AnswerTooLarge, TooManyRequests, Unauthorized

__all__ = ["KEEP_ANNOTATION", "Installation"]

KEEP_ANNOTATION: Final = f"{GROUP}/keep"
"""If `"true"` on an object of an add-on, the object remains after the removal of the add-on."""

_ADDON_SECONDS: Final = 30.0
_ESTABLISHED_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_MAX_SILENT: Final = 2
"""Number of calls without an answer in time after which the rest of the add-on waits for a retry. A webhook of the
tenant that hangs delays only the objects that it admits.
"""
_MAX_TOLD: Final = 300
_REPLACED: Final = frozenset({"ClusterRoleBinding", "RoleBinding"})


class _GivenUp(Exception):
    """Raised if the rest of an add-on must wait for the next attempt."""


@dataclass(slots=True)
class _Outcome:
    failures: list[str] = field(default_factory=list)
    silent: int = 0


class Installation:
    """Installer for the add-ons of a control plane. Create a new instance for each pass."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._discovery = Discovery(client)
        self._inventory = Inventory(client)
        self._owners: dict[tuple[str, str, str, str], str] = {}
        self._made: dict[str, list[ObjectId]] = {}

    async def begin(self) -> list[str]:
        """Read the inventories, and return the installed add-ons. Raises ProviderError."""
        await self._inventory.load()
        return self._inventory.addons()

    async def install(self, addon: str, bundle: Bundle) -> list[str]:
        """Apply the objects of an add-on. Returns the failures, a sentence for each object.

        Raises ProviderError if the control plane is unreachable or denies all requests, so that further add-ons need no
        attempt.
        """
        outcome = _Outcome()
        async with self._bounded(outcome):
            ordered = sorted(bundle.objects, key=lambda obj: rank(identify(obj)))
            foundation = [obj for obj in ordered if rank(identify(obj)) <= FOUNDATION]
            crds = [obj for obj in foundation if obj["kind"] == CRD_KIND]
            installed = await self._make(addon, foundation, outcome)
            await self._established(map(identify, crds), outcome)
            installed += await self._make(addon, ordered[len(foundation) :], outcome, new_kinds=_defined_by(crds))
            self._made[addon] = installed
        return outcome.failures

    async def prune(self, addon: str) -> list[str]:
        """Remove objects that are in the inventory of an add-on but not in its bundle any more. Returns the failures.

        Call this after all calls of `install`, so that an object that moves between add-ons is not removed. Raises
        ProviderError as `install` does.
        """
        outcome = _Outcome()
        async with self._bounded(outcome):
            await self._prune(addon, keep=self._made[addon], outcome=outcome)
        return outcome.failures

    async def uninstall(self, addon: str) -> list[str]:
        """Remove all objects and the inventory of an add-on. Returns failures and raises errors as `prune` does."""
        outcome = _Outcome()
        async with self._bounded(outcome):
            await self._prune(addon, keep=[], outcome=outcome)
            if not outcome.failures:
                await self._inventory.drop(addon)
        return outcome.failures

    @contextlib.asynccontextmanager
    async def _bounded(self, outcome: _Outcome) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_ADDON_SECONDS):
                yield
        except TimeoutError:
            outcome.failures.append(f"not finished in {_ADDON_SECONDS:g} s; the operator continues later")
        except _GivenUp:
            outcome.failures.append("the rest waits for a retry")

    async def _make(
        self, addon: str, objects: list[Object], outcome: _Outcome, *, new_kinds: Collection[tuple[str, str]] = ()
    ) -> list[ObjectId]:
        """Record the objects in the inventory, and then apply them.

        Objects of `new_kinds` wait until the kind is served.
        """
        placed: list[tuple[Resource, ObjectId, Object]] = []
        for obj in objects:
            with self._told(identify(obj), outcome):
                is_new = (identify(obj).key[0], obj["kind"]) in new_kinds
                placement = await self._place(obj, is_new=is_new)
                if placement is None:
                    outcome.failures.append(
                        f"{identify(obj)}: the control plane does not serve kind {obj['kind']} of {obj['apiVersion']};"
                        " have the bundle bring its CustomResourceDefinition"
                    )
                else:
                    placed.append(placement)
        installed_keys = {installed.key for installed in self._inventory.of(addon)}
        ours = []
        for resource, identity, obj in placed:
            with self._told(identity, outcome):
                if await self._may_take(addon, resource, identity, outcome, known=installed_keys):
                    self._owners[identity.key] = addon
                    ours.append((resource, identity, obj))
        await self._inventory.note(addon, [identity for _, identity, _ in ours])
        for resource, identity, obj in ours:
            with self._told(identity, outcome):
                await self._apply(resource, _marked(obj, addon=addon))
        return [identity for _, identity, _ in ours]

    async def _apply(self, resource: Resource, obj: Object) -> None:
        try:
            await self._client.apply(resource, obj, field_manager=FIELD_MANAGER, force=True)
        except Invalid:
            if resource.kind not in _REPLACED:
                raise
            # A user has created the binding with another role. The role of a binding is immutable, so replace the
            # binding.
            with contextlib.suppress(NotFound):
                await self._client.delete(resource, obj["metadata"]["name"], namespace=obj["metadata"].get("namespace"))
            await self._client.apply(resource, obj, field_manager=FIELD_MANAGER, force=True)

    async def _place(self, obj: Object, *, is_new: bool) -> tuple[Resource, ObjectId, Object] | None:
        resource = await self._discovery.find(obj["apiVersion"], obj["kind"])
        if resource is None and is_new:
            # The API server serves a new kind shortly after its definition is established.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ESTABLISHED_SECONDS):
                    while resource is None:
                        await asyncio.sleep(_POLL_SECONDS)
                        resource = await self._discovery.find(obj["apiVersion"], obj["kind"], again=True)
        if resource is None:
            return None
        metadata = {name: value for name, value in obj["metadata"].items() if name != "namespace"}
        if resource.namespaced:
            metadata["namespace"] = obj["metadata"].get("namespace") or "default"
        there = {**obj, "metadata": metadata}
        return resource, identify(there), there

    async def _may_take(
        self,
        addon: str,
        resource: Resource,
        identity: ObjectId,
        outcome: _Outcome,
        *,
        known: set[tuple[str, str, str, str]],
    ) -> bool:
        owner = self._owners.get(identity.key)
        if owner is not None:
            twice = "twice in the bundle" if owner == addon else f"in add-on {owner} as well"
            outcome.failures.append(f"{identity} is {twice}; leave it in one place")
            return False
        if identity.key in known:
            return True
        try:
            present = await self._get(resource, identity)
        except NotFound:
            return True
        if _label(present) is not None:
            return True
        if identity.kind == "Namespace" and identity.key[0] == "":
            # The bundle only needs the namespace to exist, so the namespace remains the tenant's.
            return False
        outcome.failures.append(
            f"{identity} exists in the control plane and is not the add-on's; delete it there, or label it"
            f" {ADDON_LABEL}={label_value(addon)}"
        )
        return False

    async def _established(self, crds: Iterable[ObjectId], outcome: _Outcome) -> None:
        try:
            async with asyncio.timeout(_ESTABLISHED_SECONDS):
                for crd in crds:
                    with self._told(crd, outcome):
                        await self._until_established(crd)
        except TimeoutError:
            outcome.failures.append(f"a CustomResourceDefinition is not established after {_ESTABLISHED_SECONDS:g} s")

    async def _until_established(self, crd: ObjectId) -> None:
        while True:
            if _is_established(await self._get(CUSTOM_RESOURCE_DEFINITIONS, crd)):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _prune(self, addon: str, *, keep: list[ObjectId], outcome: _Outcome) -> None:
        keys = {identity.key for identity in keep}
        left = []
        for identity in sorted(self._inventory.of(addon), key=rank, reverse=True):
            # An object that moved to another add-on belongs to that add-on.
            if identity.key in keys or identity.key in self._owners:
                continue
            before = len(outcome.failures)
            with self._told(identity, outcome):
                await self._remove(addon, identity)
            if len(outcome.failures) > before:
                left.append(identity)
        await self._inventory.write(addon, [*keep, *left])

    async def _remove(self, addon: str, identity: ObjectId) -> None:
        resource = await self._discovery.find(identity.api_version, identity.kind)
        if resource is None or resource.namespaced != bool(identity.namespace):
            return
        with contextlib.suppress(NotFound):
            present = await self._get(resource, identity)
            is_kept = _noted(present, "annotations", KEEP_ANNOTATION) == "true"
            if _label(present) == label_value(addon) and not is_kept:
                await self._client.delete(
                    resource,
                    identity.name,
                    namespace=identity.namespace or None,
                    uid=present["metadata"].get("uid"),
                    propagation="Background",
                )

    async def _get(self, resource: Resource, identity: ObjectId) -> Object:
        return await self._client.get(resource, identity.name, namespace=identity.namespace or None)

    @contextlib.contextmanager
    def _told(self, identity: ObjectId, outcome: _Outcome) -> Iterator[None]:
        """Record the failure of a single object, but raise a failure of the whole control plane."""
        try:
            yield
        except (Unauthorized, TooManyRequests):
            raise
        except AnswerTooLarge as error:
            outcome.failures.append(f"{identity}: {_words(error, identity)}")
        except Unreachable as error:
            if not error.timed_out:
                raise
            outcome.silent += 1
            outcome.failures.append(f"{identity}: no answer in time")
            if outcome.silent >= _MAX_SILENT:
                raise _GivenUp from None
        except ProviderError as error:
            outcome.failures.append(f"{identity}: {_words(error, identity)}")


def _words(error: ProviderError, identity: ObjectId) -> str:
    if isinstance(error, ApiError):
        # The API server may repeat a refused value, and the values of a Secret must not get into a status.
        message = f"{error.status} {error.reason}" if identity.kind == "Secret" else error.message
    else:
        message = str(error)
    return message if len(message) <= _MAX_TOLD else f"{message[: _MAX_TOLD - 1]}…"


def _marked(obj: Object, *, addon: str) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), ADDON_LABEL: label_value(addon)}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def _label(obj: Object) -> str | None:
    return _noted(obj, "labels", ADDON_LABEL)


def _noted(obj: Object, field: str, key: str) -> str | None:
    """Return a label or an annotation; None unless it is a text. A tenant's answer may have any JSON in its place."""
    values = obj["metadata"].get(field)
    value = values.get(key) if isinstance(values, Mapping) else None
    return value if isinstance(value, str) else None


def _defined_by(crds: Iterable[Object]) -> set[tuple[str, str]]:
    kinds = set()
    for crd in crds:
        with contextlib.suppress(KeyError, TypeError):
            kinds.add((crd["spec"]["group"], crd["spec"]["names"]["kind"]))
    return kinds


def _is_established(crd: Object) -> bool:
    # `conditions` is null until the API server has processed the CRD: the field has no omitempty (apiextensions/v1).
    status = crd.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    return any(
        isinstance(condition, Mapping) and (condition.get("type"), condition.get("status")) == ("Established", "True")
        for condition in (conditions if isinstance(conditions, list) else ())
    )
