"""Installs add-ons in one control plane: by server-side apply, tracked, pruned, each on its own.

The operator does everything through the tenant's own API. An object that exists and is not an add-on's is the tenant's,
and the operator does not adopt it. The operator deletes only what is in an inventory and has the add-on's label. So a
user who may write inventories cannot have it delete other objects.
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
"""`"true"` on an object of an add-on has it stay when the add-on is removed."""

_ADDON_SECONDS: Final = 30.0
_ESTABLISHED_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.1
_MAX_SILENT: Final = 2
"""Calls without an answer in time after which the rest of the add-on waits for a retry. A webhook of the tenant that
hangs delays only the objects that it is called for."""
_MAX_TOLD: Final = 300
_REPLACED: Final = frozenset({"ClusterRoleBinding", "RoleBinding"})


class _GivenUp(Exception):
    """The rest of an add-on waits for the next try."""


@dataclass(slots=True)
class _Outcome:
    failures: list[str] = field(default_factory=list)
    silent: int = 0


class Installation:
    """Brings the add-ons of one control plane in line; made anew for each look at it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._discovery = Discovery(client)
        self._inventory = Inventory(client)
        self._owners: dict[tuple[str, str, str, str], str] = {}
        self._made: dict[str, list[ObjectId]] = {}

    async def begin(self) -> list[str]:
        """Read what is installed, and return the add-ons that it is of. Raises ProviderError."""
        await self._inventory.load()
        return self._inventory.addons()

    async def install(self, addon: str, bundle: Bundle) -> list[str]:
        """Have the objects of an add-on in place; returns what went wrong, a sentence for each object.

        Raises ProviderError where the control plane cannot be reached or lets us do nothing, so that no other add-on
        needs to be tried.
        """
        outcome = _Outcome()
        async with self._bounded(outcome):
            ordered = sorted(bundle.objects, key=lambda obj: rank(identify(obj)))
            foundation = [obj for obj in ordered if rank(identify(obj)) <= FOUNDATION]
            crds = [obj for obj in foundation if obj["kind"] == CRD_KIND]
            made = await self._make(addon, foundation, outcome)
            await self._established(map(identify, crds), outcome)
            made += await self._make(addon, ordered[len(foundation) :], outcome, new_kinds=_defined_by(crds))
            self._made[addon] = made
        return outcome.failures

    async def prune(self, addon: str) -> list[str]:
        """Remove what an installed add-on had before and has no more; otherwise like `install`.

        After every `install`, so that what moved from one add-on to another is not removed under it.
        """
        outcome = _Outcome()
        async with self._bounded(outcome):
            await self._prune(addon, keep=self._made[addon], outcome=outcome)
        return outcome.failures

    async def uninstall(self, addon: str) -> list[str]:
        """Remove everything that an add-on had installed; otherwise like `prune`."""
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
        """Apply objects, once all of them are noted in the inventory; those of `new_kinds` when they are served."""
        placed: list[tuple[Resource, ObjectId, Object]] = []
        for obj in objects:
            with self._told(identify(obj), outcome):
                is_new = (identify(obj).key[0], obj["kind"]) in new_kinds
                found = await self._place(obj, is_new=is_new)
                if found is None:
                    outcome.failures.append(
                        f"{identify(obj)}: the control plane does not serve kind {obj['kind']} of {obj['apiVersion']};"
                        " have the bundle bring its CustomResourceDefinition"
                    )
                else:
                    placed.append(found)
        known = {each.key for each in self._inventory.of(addon)}
        ours = []
        for resource, identity, obj in placed:
            with self._told(identity, outcome):
                if await self._may_take(addon, resource, identity, outcome, known=known):
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
            # A user made it anew with another role, which cannot be changed.
            with contextlib.suppress(NotFound):
                await self._client.delete(resource, obj["metadata"]["name"], namespace=obj["metadata"].get("namespace"))
            await self._client.apply(resource, obj, field_manager=FIELD_MANAGER, force=True)

    async def _place(self, obj: Object, *, is_new: bool) -> tuple[Resource, ObjectId, Object] | None:
        resource = await self._discovery.find(obj["apiVersion"], obj["kind"])
        if resource is None and is_new:
            # The API server publishes a new kind a moment after its definition is established.
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
            # It is there, which is all that is asked of it; it stays the tenant's.
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
        kept = {identity.key for identity in keep}
        left = []
        for identity in sorted(self._inventory.of(addon), key=rank, reverse=True):
            # What another add-on has by now is that one's.
            if identity.key in kept or identity.key in self._owners:
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
            kept = _noted(present, "annotations", KEEP_ANNOTATION) == "true"
            if _label(present) == label_value(addon) and not kept:
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
        """Note a failure of one object; raise a failure of the whole control plane."""
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
        # The API server may repeat a value that it refuses, and a Secret's values are for no status.
        told = f"{error.status} {error.reason}" if identity.kind == "Secret" else error.message
    else:
        told = str(error)
    return told if len(told) <= _MAX_TOLD else f"{told[: _MAX_TOLD - 1]}…"


def _marked(obj: Object, *, addon: str) -> Object:
    labels = {**(obj["metadata"].get("labels") or {}), ADDON_LABEL: label_value(addon)}
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def _label(obj: Object) -> str | None:
    return _noted(obj, "labels", ADDON_LABEL)


def _noted(obj: Object, field: str, key: str) -> str | None:
    """Return a label or an annotation; an answer may have anything in their place."""
    found = obj["metadata"].get(field)
    value = found.get(key) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else None


def _defined_by(crds: Iterable[Object]) -> set[tuple[str, str]]:
    found = set()
    for crd in crds:
        with contextlib.suppress(KeyError, TypeError):
            found.add((crd["spec"]["group"], crd["spec"]["names"]["kind"]))
    return found


def _is_established(crd: Object) -> bool:
    # `conditions` is null until the API server has looked at the CRD: the field has no omitempty (apiextensions/v1).
    status = crd.get("status")
    conditions = status.get("conditions") if isinstance(status, Mapping) else None
    return any(
        isinstance(each, Mapping) and (each.get("type"), each.get("status")) == ("Established", "True")
        for each in (conditions if isinstance(conditions, list) else ())
    )
