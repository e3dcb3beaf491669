"""Watches of the controller of control planes: every object on which the state of a control plane depends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kplane.api.conditions import READY
from kplane.components.names import mark_of, place
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.watch.addresses import held_addresses
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.changes import Changes, Names, StoreChanges, matters, only_status
from kplane.controlplane_operator.watch.conditions import refused_since, stored_condition
from kplane.controlplane_operator.watch.predicates import changes_demand, is_hibernated, is_published
from kplane.controlplane_operator.watch.stores import Stores, cluster_paths, field_of, recorded_path, served_uids
from kplane.provider import Request, predicates
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.controllers.builder import ControllerBuilder
from kplane.provider.controllers.handlers import Delayed

__all__ = ["control_planes_of_component", "watch_control_planes"]

_WORDS_SECONDS: Final = 1.0


def watch_control_planes(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile a control plane after each change on which its state depends."""
    names = _Names(stores)
    builder.for_(CONTROL_PLANES, predicates(changes.passing(matters)))
    builder.watches(CONTROL_PLANES, changes.mapped(names.that_wait_for))
    builder.watches(CONTROL_PLANE_CLASSES, changes.mapped(names.of_class))
    builder.watches(CONTROL_PLANE_ENDPOINTS, changes.mapped(names.of_endpoint))
    builder.watches(CONTROL_PLANE_REGISTRATIONS, changes.mapped(names.of_registration))
    builder.watches(CONTROL_PLANE_SNAPSHOTS, changes.mapped(names.of_snapshot))
    builder.watches(NAMESPACES, changes.mapped(names.of_namespace))
    for store in stores.secret_stores():
        builder.watches_raw(StoreChanges(store, names.of_secret))
    return builder


def control_planes_of_component(component: str, *, stores: Stores) -> Iterator[str]:
    """Return the control plane of a component of the runtime, or the one whose removal waits for this mcm."""
    if mark_of(component) is not None:
        for obj in stores.control_planes.by("namespace", place(component).namespace):
            # A removal continues once each mcm there has ended.
            if "deletionTimestamp" in obj["metadata"]:
                yield obj["metadata"]["name"]
    yield from _names(stores.control_planes.by("component", component))


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the control planes to reconcile after a change."""

    stores: Stores

    def that_wait_for(self, change: Change) -> Names:
        """Return the control planes that may wait for this one: for its data, or for its place."""
        if is_published(change.old) != is_published(change.new):
            # Control planes that wait for it as the source of their data.
            yield from self._by("source", change.key[1])
        freed = set(held_addresses(change.old or {})) - set(held_addresses(change.new or {}))
        if change.old is not None and (freed or change.new is None):
            # Its clusterPath or address is free now, so control planes that were refused because of it are reconciled.
            for path in cluster_paths(change.old):
                yield from self._by("path", path)
            for endpoint in [candidate for place in freed for candidate in self.stores.endpoints.by("address", place)]:
                yield from self._by("endpoint", endpoint["metadata"]["name"])

    def of_class(self, change: Change) -> Names:
        return self._by("class", change.key[1]) if not only_status(change) else ()

    def of_endpoint(self, change: Change) -> Names:
        if matters(change):
            yield from self._by("endpoint", change.key[1])
            yield from self._owners(change)

    def of_registration(self, change: Change) -> Names:
        versions = [obj for obj in (change.old, change.new) if obj]
        # A changed registration names its new control plane, while its instance may still run at the former one.
        served = {
            control_plane["metadata"]["name"]
            for obj in versions
            for uid in served_uids(obj)
            for control_plane in self.stores.control_planes.by("uid", uid)
        }
        if refused_since(change.new) not in {None, refused_since(change.old)}:
            # The operator repairs rights that may be missing inside the control plane.
            yield from (Delayed(name, _WORDS_SECONDS) for name in served)
        changed = changes_demand(change)
        for name in served | {name for obj in versions for name in field_of("spec", "controlPlaneRef", "name")(obj)}:
            control_plane = self.stores.control_planes.get(("", name))
            # A control plane that is being deleted or falls asleep waits for its registrations. Another may need its
            # default registration. That has the control plane's name, so its own changes do not matter until it is
            # deleted.
            needs_default = change.new is None or (changed and change.key[1] != name)
            if control_plane is not None and (needs_default or _ends(control_plane)):
                yield name

    def of_snapshot(self, change: Change) -> Names:
        return self._by("snapshot", change.key[1]) if _ready_reason(change.old) != _ready_reason(change.new) else ()

    def of_namespace(self, change: Change) -> Names:
        yield from self._by("namespace", change.key[1])
        for path in {path for obj in (change.old, change.new) if obj for path in recorded_path(obj)}:
            # Control planes that were refused because of data under their clusterPath are reconciled.
            yield from self._by("path", path)

    def of_secret(self, change: Change) -> Names:
        namespace, name = change.key
        yield from self._by("namespace", namespace)
        yield from self._owners(change)  # of a Secret outside the control plane's namespace, such as the gateway's
        for endpoint in self.stores.endpoints.by("credentials", f"{namespace}/{name}"):
            yield from self._by("endpoint", endpoint["metadata"]["name"])

    def _owners(self, change: Change) -> Iterator[str]:
        for obj in (change.old, change.new):
            for owner in obj["metadata"].get("ownerReferences", ()) if obj else ():
                if owner.get("kind") == CONTROL_PLANES.kind and self.stores.control_planes.get(("", owner["name"])):
                    yield owner["name"]

    def _by(self, index: str, value: str) -> list[str]:
        return _names(self.stores.control_planes.by(index, value))


def _names(objects: Iterable[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def _ends(control_plane: Object) -> bool:
    return "deletionTimestamp" in control_plane["metadata"] or is_hibernated(control_plane)


def _ready_reason(obj: Object | None) -> str | None:
    return stored_condition(obj, READY).get("reason")
