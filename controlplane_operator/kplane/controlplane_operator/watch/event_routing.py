"""Routing of changes to work queues: each change enqueues the reconcilers whose results depend on the object."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from kplane.api.conditions import DEDICATED_READY, READY, RUNNING
from kplane.api.names import LAST_USED_ANNOTATION, PAUSED_ANNOTATION
from kplane.components.names import mark_of, place
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.watch.addresses import held_addresses
from kplane.controlplane_operator.watch.cache import Change, Key, Object, Store, key_of
from kplane.controlplane_operator.watch.class_usage import concerned_classes
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.controlplane_operator.watch.predicates import (
    concerns_mcm,
    concerns_schedule,
    has_addons,
    is_held,
    is_published,
    may_need_mcm,
    may_resolve,
)
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import (
    Stores,
    cluster_paths,
    field_of,
    mcm_marks,
    recorded_path,
    served_uids,
    uid_of,
)

__all__ = [
    "connect",
    "is_hibernated",
    "refused_since",
    "wake_all",
    "wake_by_component",
]

_WORDS_SECONDS: Final = 1.0
_CREDENTIALS_REFUSED: Final = "CredentialsRefused"
"""A reason of mcm."""

_CLASS_SECONDS: Final = 1.0
"""Delay before a class is reconciled, so that changes of many control planes lead to a single status write."""

_WORDS: Final = frozenset({"conditions", "phase", "keyFingerprints"})
"""Status fields that repeat other facts, or are messages. No reconciler has to react to them at once."""
_PROGRESS: Final = frozenset({"keys", "bytes", "percent", "lagMilliseconds", "message"})
"""Progress fields of a migration. The migration itself schedules its next reconcile."""


def connect(stores: Stores, *, queues: Queues) -> None:
    """Enqueue the dependent objects for every later change in the stores."""
    for store, listener in _listeners(stores, queues):
        store.listen(listener)


def wake_all(stores: Stores, *, queues: Queues) -> None:
    """Enqueue the dependents of all stored objects, as if all of them were new."""
    for store, listener in _listeners(stores, queues):
        store.replay(listener)


def _listeners(stores: Stores, queues: Queues) -> tuple[tuple[Store, Callable[[Change], None]], ...]:
    wiring = _EventRouter(stores, queues)
    return (
        (stores.control_planes, wiring.control_plane),
        (stores.classes, wiring.control_plane_class),
        (stores.endpoints, wiring.control_plane_endpoint),
        (stores.registrations, wiring.registration),
        (stores.snapshots, wiring.snapshot),
        (stores.namespaces, wiring.namespace),
        (stores.secrets, wiring.secret),
        (stores.allowed_secrets, wiring.secret),
        (stores.endpoint_secrets, wiring.secret),
        (stores.bundles, wiring.bundle),
    )


def wake_by_component(component: str, *, stores: Stores, queues: Queues) -> None:
    """Enqueue the control plane of a runtime component, or the registration whose mcm the component is."""
    if (mark := mark_of(component)) is not None:
        for obj in stores.registrations.by("mcm", mark):
            queues.mcms.add(("", obj["metadata"]["name"]))
        for obj in stores.control_planes.by("namespace", place(component).namespace):
            # A removal continues once each mcm there has ended.
            if "deletionTimestamp" in obj["metadata"]:
                queues.control_planes.add(key_of(obj))
    for obj in stores.control_planes.by("component", component):
        queues.control_planes.add(("", obj["metadata"]["name"]))


def _matters(change: Change) -> bool:
    """Return whether more changed than conditions, phase and progress.

    The operator writes these fields itself. If they caused a reconcile, an object with a new message at
    each attempt would never come to rest. An example is an error of an API server with a request number.
    """
    return _without_words(change.old) != _without_words(change.new)


def _without_status(obj: Object | None) -> Object | None:
    stripped = _without_words(obj)
    return {**stripped, "status": None} if stripped is not None else None


def is_hibernated(control_plane: Object) -> bool:
    """Return whether a control plane sleeps, falls asleep, or is not awake again yet."""
    return (control_plane.get("status") or {}).get("hibernation") is not None


def _reached(obj: Object | None) -> set[tuple[str, bool]]:
    """Return the endpoint of a control plane, and whether an API server answers there.

    It is the endpoint that the spec names, or the control plane's own endpoint once published.
    """
    if obj is None:
        return set()
    referenced = field_of("spec", "endpointRef", "name")(obj)
    own = [obj["metadata"]["name"]] if field_of("status", "endpoint")(obj) else []
    return {(name, not is_hibernated(obj)) for name in referenced or own}


def _is_ready(obj: Object | None) -> bool:
    return stored_condition(obj, READY).get("status") == "True"


def _ready_reason(obj: Object | None) -> str | None:
    return stored_condition(obj, READY).get("reason")


def refused_since(registration: Object | None) -> str | None:
    """Return since when mcm has reported that the control plane refuses its controllers; None if it does not."""
    running = stored_condition(registration, RUNNING)
    return str(running.get("lastTransitionTime")) if running.get("reason") == _CREDENTIALS_REFUSED else None


def _wish(obj: Object | None) -> tuple[Any, ...]:
    """Return the fields of a registration that decide whether its control plane needs a default registration."""
    metadata = (obj or {}).get("metadata", {})
    paused = metadata.get("annotations", {}).get(PAUSED_ANNOTATION)
    return (obj or {}).get("spec"), metadata.get("deletionTimestamp"), paused, _ready_reason(obj)


def _without_words(obj: Object | None) -> Object | None:
    if obj is None:
        return None
    metadata = {name: value for name, value in obj["metadata"].items() if name != "resourceVersion"}
    if LAST_USED_ANNOTATION in metadata.get("annotations", ()):
        # Only the presence of the annotation matters. Its time is read when the control plane may be idle.
        metadata["annotations"] = {**metadata["annotations"], LAST_USED_ANNOTATION: ""}
    status = {name: value for name, value in obj.get("status", {}).items() if name not in _WORDS}
    if (migration := status.get("migration")) is not None:
        status["migration"] = {name: value for name, value in migration.items() if name not in _PROGRESS}
    return {**obj, "metadata": metadata, "status": status}


@dataclass(frozen=True, slots=True)
class _EventRouter:
    stores: Stores
    queues: Queues

    def control_plane(self, change: Change) -> None:
        matters = _matters(change)
        if matters:
            self.queues.control_planes.add(change.key)
            self._snapshots(change)
        if matters or _is_ready(change.old) != _is_ready(change.new):
            self._addons(change.new, change.key)
        if is_published(change.old) != is_published(change.new):
            # Control planes that wait for it as the source of their data are enqueued.
            self._control_planes("source", change.key[1])
        for name in concerned_classes(change):
            self.queues.classes.add_after(("", name), _CLASS_SECONDS)
        self._registrations_of(change, matters=matters)
        if matters:
            uids = {uid for obj in (change.old, change.new) if obj for uid in uid_of(obj)}
            served = [obj for uid in uids for obj in self.stores.registrations.by("served", uid)]
            # The mcm runs next to the control plane, and only as long as that exists.
            self._mcms([*self.stores.registrations.by("control plane", change.key[1]), *served])
            for obj in served:
                # A registration that names another control plane by now may have waited for the end of this one.
                self.queues.registrations.add(("", obj["metadata"]["name"]))
        # An endpoint is probed from its control planes, while they are awake.
        for name, _ in _reached(change.old) ^ _reached(change.new):
            self.queues.endpoints.add(("", name))
        freed = set(held_addresses(change.old or {})) - set(held_addresses(change.new or {}))
        if change.old is not None and (freed or change.new is None):
            # Its clusterPath or address is free now, so control planes that were refused because of it are reconciled.
            for path in cluster_paths(change.old):
                self._control_planes("path", path)
            for endpoint in [candidate for place in freed for candidate in self.stores.endpoints.by("address", place)]:
                self._control_planes("endpoint", endpoint["metadata"]["name"])

    def _registrations_of(self, change: Change, *, matters: bool) -> None:
        """Enqueue the registrations of a control plane if they may resolve differently or need a new message."""
        if matters and may_resolve(change):
            self._registrations("control plane", change.key[1])
        elif not is_published(change.new):
            # Registrations repeat its messages, which change fast. Only the last message matters to readers, so wait a
            # moment.
            for obj in self.stores.registrations.by("control plane", change.key[1]):
                self.queues.registrations.add_after(("", obj["metadata"]["name"]), _WORDS_SECONDS)

    def control_plane_class(self, change: Change) -> None:
        if _without_status(change.old) == _without_status(change.new):
            # This is usually our own status write. The delay merges the writes for many control planes that arrive
            # meanwhile.
            self.queues.classes.add_after(change.key, _CLASS_SECONDS)
            return
        self.queues.classes.add(change.key)
        for control_plane in self._control_planes("class", change.key[1]):
            self.queues.schedules.add(("", control_plane))
            self._registrations("control plane", control_plane)
            self.queues.addons.add(("", control_plane))
            # The class determines the placement of the mcm.
            self._mcms(self.stores.registrations.by("control plane", control_plane))

    def control_plane_endpoint(self, change: Change) -> None:
        if not _matters(change):
            return
        self.queues.endpoints.add(change.key)
        self._control_planes("endpoint", change.key[1])
        self._registrations("endpoint", change.key[1])
        self._owner(change)

    def registration(self, change: Change) -> None:
        if not is_held(change):
            self.queues.registrations.add(change.key)
        had_mcm, has_mcm = (
            bool(stored_condition(registration, DEDICATED_READY)) for registration in (change.old, change.new)
        )
        if (_matters(change) or (had_mcm and not has_mcm)) and concerns_mcm(change):
            self.queues.mcms.add(change.key)
        versions = [obj for obj in (change.old, change.new) if obj]
        # If registrations share the name of an mcm, only the oldest may have it. So each is enqueued when another
        # changes.
        for mark in set(mcm_marks(change.old or {})) ^ set(mcm_marks(change.new or {})):
            for obj in self.stores.registrations.by("mcm", mark):
                self.queues.registrations.add(key_of(obj))
                self.queues.mcms.add(key_of(obj))
        names = {name for obj in versions for name in field_of("spec", "controlPlaneRef", "name")(obj)}
        # A changed registration names its new control plane, while its instance may still run at the former one.
        served = [self.stores.control_planes.by("uid", uid) for obj in versions for uid in served_uids(obj)]
        changed = _wish(change.old) != _wish(change.new)
        if refused_since(change.new) not in {None, refused_since(change.old)}:
            # The operator repairs rights that may be missing inside the control plane.
            for obj in (obj for control_planes in served for obj in control_planes):
                self.queues.control_planes.add_after(key_of(obj), _WORDS_SECONDS)
        for name in names | {obj["metadata"]["name"] for control_planes in served for obj in control_planes}:
            if changed or _matters(change):
                # Each service has a single registration, so the next registration has to take it over at once.
                self._registrations("control plane", name, but=change.key)
            control_plane = self.stores.control_planes.get(("", name))
            # A control plane that is being deleted or falls asleep waits for its registrations. Another may need its
            # default registration. That has the control plane's name, so its own changes do not matter until it is
            # deleted.
            default = change.new is None or (changed and change.key[1] != name)
            ends = control_plane is not None and (
                "deletionTimestamp" in control_plane["metadata"] or is_hibernated(control_plane)
            )
            if control_plane is not None and (default or ends):
                self.queues.control_planes.add(("", name))

    def _snapshots(self, change: Change) -> None:
        if concerns_schedule(change, classes=self.stores.classes):
            self.queues.schedules.add(change.key)
        for obj in self.stores.snapshots.by("control plane", change.key[1]):
            # Snapshots may wait for their control plane.
            self.queues.snapshots.add(key_of(obj))

    def _addons(self, control_plane: Object | None, key: Key) -> None:
        """Enqueue the control plane for add-ons, unless there are none to install and no state to discard."""
        if control_plane is None or has_addons(control_plane, classes=self.stores.classes):
            self.queues.addons.add(key)

    def _mcms(self, registrations: Iterable[Object]) -> None:
        for obj in registrations:
            if may_need_mcm(obj):
                self.queues.mcms.add(key_of(obj))

    def snapshot(self, change: Change) -> None:
        self.queues.snapshots.add(change.key)
        if _ready_reason(change.old) != _ready_reason(change.new):
            self._control_planes("snapshot", change.key[1])
        for obj in (change.new, change.old):
            if obj is not None:
                for name in field_of("spec", "controlPlaneRef", "name")(obj):
                    self.queues.schedules.add(("", name))
                return

    def namespace(self, change: Change) -> None:
        self._control_planes("namespace", change.key[1])
        paths = {path for obj in (change.old, change.new) if obj for path in recorded_path(obj)}
        for path in paths:
            # Control planes that were refused because of data under their clusterPath are reconciled.
            self._control_planes("path", path)

    def secret(self, change: Change) -> None:
        namespace, name = change.key
        for control_plane in self._control_planes("namespace", namespace):
            self._addons(self.stores.control_planes.get(("", control_plane)), ("", control_plane))
        self._owner(change)  # for a Secret outside the control plane's namespace, such as the gateway's
        self._registrations("secret", f"{namespace}/{name}")
        for endpoint in self.stores.endpoints.by("credentials", f"{namespace}/{name}"):
            self.queues.endpoints.add(("", endpoint["metadata"]["name"]))
            self._control_planes("endpoint", endpoint["metadata"]["name"])

    def bundle(self, change: Change) -> None:
        for obj in self.stores.classes.by("addon", change.key[1]):
            name = obj["metadata"]["name"]
            self.queues.classes.add(("", name))
            for control_plane in self.stores.control_planes.by("class", name):
                self.queues.addons.add(("", control_plane["metadata"]["name"]))

    def _owner(self, change: Change) -> None:
        for obj in (change.old, change.new):
            for owner in obj["metadata"].get("ownerReferences", ()) if obj else ():
                if owner.get("kind") == CONTROL_PLANES.kind and self.stores.control_planes.get(("", owner["name"])):
                    self.queues.control_planes.add(("", owner["name"]))

    def _control_planes(self, index: str, value: str) -> list[str]:
        names = [obj["metadata"]["name"] for obj in self.stores.control_planes.by(index, value)]
        for name in names:
            self.queues.control_planes.add(("", name))
        return names

    def _registrations(self, index: str, value: str, *, but: Key | None = None) -> None:
        for obj in self.stores.registrations.by(index, value):
            if key_of(obj) != but:
                self.queues.registrations.add(key_of(obj))
