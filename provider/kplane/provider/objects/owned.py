"""Applies the objects that an owner describes, and deletes objects that it describes no longer."""

from __future__ import annotations

import base64
import copy
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, overload

from kplane.provider.client.body import name_of, namespace_of
from kplane.provider.client.resources import SECRETS, Resource
from kplane.provider.client.typed import Kind, ObjectT
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.errors import ObjectTaken, ProviderError
from kplane.provider.objects.conflicts import retry_on_conflict
from kplane.provider.objects.fingerprint import Fingerprint
from kplane.provider.objects.identity import Object, title_of, uid_of
from kplane.provider.objects.missing import or_none
from kplane.provider.objects.owners import controller_of, controller_words, is_controlled_by, set_controller
from kplane.provider.objects.view import View, view_of

__all__ = ["OWNER_LABEL", "Applied", "apply_owned"]

log: Final = logging.getLogger(__name__)

OWNER_LABEL: Final = "objects.kplane.dev/owner"
"""Label of owned objects: the uid of the owner, preceded by `part` and a dot if given. Caches may select by it."""

_PART: Final = re.compile(r"([a-z0-9]([-a-z0-9]{0,24}[a-z0-9])?)?")


class Applied(NamedTuple, Generic[ObjectT]):
    """The applied objects in the order of their descriptions, and the numbers of writes and deletions."""

    objects: list[ObjectT]
    written: int
    pruned: int


@overload
async def apply_owned(
    cluster: Cluster,
    owner: object,
    objects: Iterable[Object],
    *,
    kinds: Iterable[Kind[Any]] = (),
    part: str = "",
    adopt: bool = False,
    field_manager: str | None = None,
) -> Applied[Object]: ...
@overload
async def apply_owned(
    cluster: Cluster,
    owner: object,
    objects: Iterable[ObjectT],
    *,
    kinds: Iterable[Kind[Any]] = (),
    part: str = "",
    adopt: bool = False,
    field_manager: str | None = None,
) -> Applied[ObjectT]: ...
async def apply_owned(
    cluster: Cluster,
    owner: object,
    objects: Iterable[ObjectT],
    *,
    kinds: Iterable[Kind[Any]] = (),
    part: str = "",
    adopt: bool = False,
    field_manager: str | None = None,
) -> Applied[ObjectT]:
    """Make `objects` the owned objects of an owner: apply changed objects, then delete objects left out of `objects`.

    The owner and each object may be a dict or an instance of a class. Applied objects are returned as they were given.

    Each object gets the owner as its controller, and `OWNER_LABEL`. Unchanged objects cost no request: the cache of the
    cluster has them, and its `transform` must not drop their fields. If the controller `owns()` the kinds, changes by
    other programs cause a reconcile, which reverts them.

    `kinds` are further kinds in which the owner may have objects: name all kinds that the program ever describes, so
    that the last object of a kind is deleted too. If several calls share an owner, each needs its own `part`, of at
    most 26 characters. A namespaced object without a namespace gets the namespace of the owner. An object that is being
    deleted is left alone; the event of its deletion causes the reconcile that creates it again.

    An object with another controller is never changed or deleted. An object without a controller is taken over only
    with `adopt`. Raises ObjectTaken for both, possibly after writes of other objects. `field_manager` is by default
    that of the client; always give the same one, because another one does not remove the fields of this one. Raises
    ProviderError for two objects with the same kind and name, and for objects that the owner cannot own.
    """
    owning = view_of(owner)
    work = _Work(cluster, owning, part=part, adopt=adopt, field_manager=field_manager)
    # Check all objects before the first write.
    described = [await work.describe(view_of(body)) for body in objects]
    if len({target.key for target in described}) != len(described):
        raise ProviderError(
            f"{title_of(owning.body)} describes two objects of one kind and name: give each another name"
        )
    resources = [target.resource for target in described] + [await work.owned_kind(kind) for kind in kinds]
    # Apply before delete: if the process ends in between, too many objects remain, and never too few. Its successor
    # finds the rest by the label, which an object has from its first write on.
    applied = [await work.apply(target) for target in described]
    await work.prune(dict.fromkeys(resources), kept=described)
    source = cluster.client.config.server
    restored = [target.view.restore(body, source=source) for target, body in zip(described, applied, strict=True)]
    return Applied(restored, work.written, work.pruned)


@dataclass(frozen=True, slots=True)
class _Described(Generic[ObjectT]):
    """The desired state of an object, including its owner."""

    view: View[ObjectT]
    resource: Resource
    body: Object
    fingerprint: Fingerprint

    @property
    def name(self) -> str:
        return name_of(self.body)

    @property
    def namespace(self) -> str | None:
        return namespace_of(self.body)

    @property
    def key(self) -> tuple[Resource, str | None, str]:
        return self.resource, self.namespace, self.name


class _Work:
    """Applies and prunes the objects of an owner."""

    def __init__(
        self, cluster: Cluster, owner: View[Any], *, part: str, adopt: bool, field_manager: str | None
    ) -> None:
        if not _PART.fullmatch(part):
            raise ProviderError(f"{part!r} cannot be a part: use up to 26 of a-z, 0-9 and -")
        self.written = 0
        self.pruned = 0
        self._cluster = cluster
        self._owner = owner.body
        self._label = ".".join(filter(None, (part, owner.uid)))
        self._adopt = adopt
        self._field_manager = field_manager

    async def owned_kind(self, kind: Kind[Any]) -> Resource:
        """Return a kind. Raises ProviderError if the owner cannot own objects of the kind."""
        resource = await self._cluster.client.resource(kind)
        if namespace_of(self._owner) is not None and not resource.namespaced:
            raise ProviderError(
                f"{title_of(self._owner)} is in a namespace, and cannot own a cluster-scoped {resource}"
            )
        return resource

    async def describe(self, view: View[ObjectT]) -> _Described[ObjectT]:
        """Complete a description with namespace, label and owner reference."""
        resource = await self.owned_kind(view.kind)
        body = copy.deepcopy(view.body)
        metadata = body["metadata"]
        if resource == SECRETS and (texts := body.pop("stringData", None)):
            # `stringData` is never stored, so server-side apply could not remove its keys from `data` later.
            encoded = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
            body["data"] = {**(body.get("data") or {}), **encoded}
        if resource.namespaced and namespace_of(body) is None:
            metadata["namespace"] = namespace_of(self._owner)
        resource.require_namespace(namespace_of(body), name=name_of(body))
        metadata["labels"] = {**(metadata.get("labels") or {}), OWNER_LABEL: self._label}
        set_controller(self._owner, body)
        return _Described(view, resource, body, Fingerprint(body))

    async def apply(self, described: _Described[Any]) -> Object:
        """Apply a description unless the object matches it, and return the object."""
        resource, name, namespace = described.resource, described.name, described.namespace
        existing = await or_none(self._cluster.cache.get(resource, name, namespace=namespace))
        if existing is None:
            # The scope of the cache may exclude the object, or another program may have just created it.
            existing = await or_none(self._cluster.client.get(resource, name, namespace=namespace))
        if existing is not None:
            self._require_own(existing)
            if existing["metadata"].get("deletionTimestamp") or described.fingerprint.matches(existing):
                return existing
        answer = await self._write(described, described.fingerprint.annotated(), existing=existing)
        if described.fingerprint.matches(answer):
            return answer
        # The API server has added defaults, and only its answer shows them. A second write records their hash: if the
        # process ends before, its successor applies the same description again.
        answer = await self._write(described, described.fingerprint.annotated(answer), existing=answer)
        if not described.fingerprint.matches(answer):
            # Without an error, each write would cause the next write at once.
            raise ProviderError(
                f"failed to apply {title_of(answer)}: it changes with each write; look for a program or a mutating"
                " webhook that changes it"
            )
        return answer

    async def _write(self, described: _Described[Any], body: Object, *, existing: Object | None) -> Object:
        if existing is not None:
            # The uid makes the server refuse the write for a new object with the same name.
            body = {**body, "metadata": {**body["metadata"], "uid": uid_of(existing)}}
        # An object that appears meanwhile belongs to another program. Without force, its fields stay.
        answer = await self._cluster.client.apply(
            described.resource, body, force=existing is not None, field_manager=self._field_manager
        )
        self.written += 1
        log.info("applied %s", title_of(answer))
        return answer

    def _require_own(self, existing: Object) -> None:
        controller = controller_of(existing)
        if is_controlled_by(existing, self._owner) or (controller is None and self._adopt):
            return
        if controller is None:
            why = "has no controller; delete or rename it"
        else:
            why = f"is controlled by {controller_words(controller, self._owner)}"
        raise ObjectTaken(f"failed to apply {title_of(existing)} of {title_of(self._owner)}: it {why}")

    async def prune(self, resources: Iterable[Resource], *, kept: Sequence[_Described[Any]]) -> None:
        """Delete the objects of these kinds that have no description any more."""
        keys = {target.key for target in kept}
        for resource in resources:
            namespace = namespace_of(self._owner) if resource.namespaced else None
            owned = await self._cluster.cache.list(
                resource, namespace=namespace, label_selector=f"{OWNER_LABEL}={self._label}"
            )
            for body in owned:
                if (resource, namespace_of(body), name_of(body)) not in keys:
                    await self._delete(resource, body)

    async def _delete(self, resource: Resource, cached: Object) -> None:
        client, name, namespace = self._cluster.client, name_of(cached), namespace_of(cached)
        # The first attempt uses the cached state. Retries read the object.
        states: list[Object] = [cached]

        async def attempt() -> None:
            existing = states.pop() if states else await or_none(client.get(resource, name, namespace=namespace))
            # Other programs copy labels to their objects, as Kubernetes copies labels of a Service to its slices.
            if existing is None or not is_controlled_by(existing, self._owner):
                return
            metadata = existing["metadata"]
            if metadata.get("deletionTimestamp"):
                return
            # The resourceVersion ensures that this owner still controls the object.
            version = metadata["resourceVersion"]
            deletion = client.delete(
                resource,
                name,
                namespace=namespace,
                uid=metadata["uid"],
                resource_version=version,
                propagation="Background",
            )
            if await or_none(deletion) is not None:
                self.pruned += 1
                log.info("deleted %s, which is described no longer", title_of(existing))

        await retry_on_conflict(attempt)
