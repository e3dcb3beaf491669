"""Watches of the controllers of registrations, and of the dedicated mcms of registrations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kplane.api.conditions import DEDICATED_READY
from kplane.components.names import mark_of, mcm_mark
from kplane.controlplane_operator.grants import GRANT_UID_LABEL
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.registrations.identities import IDENTITY_UID_LABEL
from kplane.controlplane_operator.watch.cache import Change, Object
from kplane.controlplane_operator.watch.changes import Changes, Names, StoreChanges, matters, only_status
from kplane.controlplane_operator.watch.conditions import stored_condition
from kplane.controlplane_operator.watch.informers import RBAC_KINDS
from kplane.controlplane_operator.watch.predicates import (
    changes_demand,
    concerns_mcm,
    is_held,
    is_published,
    may_need_mcm,
    may_resolve,
)
from kplane.controlplane_operator.watch.stores import Stores, field_of, mcm_marks, served_uids, uid_of
from kplane.provider import LOCAL, Cluster, Event, Request
from kplane.provider.client.resources import SERVICE_ACCOUNTS
from kplane.provider.controllers.builder import ControllerBuilder
from kplane.provider.controllers.handlers import Delayed, Handler

__all__ = ["enqueue_granted", "mcms_of_component", "watch_dedicated_mcms", "watch_registrations"]

_WORDS_SECONDS: Final = 1.0
_RESTORED_SECONDS: Final = 1.0
"""Delay before a changed grant is restored, so that two controllers that overwrite each other cost little."""


def watch_registrations(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile a registration after each change of it, and of the objects to which it resolves."""
    names = _Registrations(stores)
    builder.watches(CONTROL_PLANE_REGISTRATIONS, changes.mapped(names.of_registration))
    builder.watches(CONTROL_PLANES, changes.mapped(names.of_control_plane))
    builder.watches(CONTROL_PLANE_CLASSES, changes.mapped(names.of_class))
    builder.watches(CONTROL_PLANE_ENDPOINTS, changes.mapped(names.of_endpoint))
    for store in stores.secret_stores():
        builder.watches_raw(StoreChanges(store, names.of_secret))
    for kind in RBAC_KINDS:
        builder.watches(kind, enqueue_granted(stores, label=GRANT_UID_LABEL))
    return builder


def watch_dedicated_mcms(
    builder: ControllerBuilder[Request], *, stores: Stores, changes: Changes
) -> ControllerBuilder[Request]:
    """Reconcile the mcm of a registration after each change of the registration, its control plane and its rights."""
    names = _DedicatedMcms(stores)
    builder.watches(CONTROL_PLANE_REGISTRATIONS, changes.mapped(names.of_registration))
    builder.watches(CONTROL_PLANES, changes.mapped(names.of_control_plane))
    builder.watches(CONTROL_PLANE_CLASSES, changes.mapped(names.of_class))
    for kind in RBAC_KINDS:
        builder.watches(kind, enqueue_granted(stores, label=IDENTITY_UID_LABEL))
    return builder


def mcms_of_component(component: str, *, stores: Stores) -> Iterator[str]:
    """Return the registrations whose mcm a component of the runtime is."""
    if (mark := mark_of(component)) is not None:
        yield from _names(stores.registrations.by("mcm", mark))


@dataclass(frozen=True, slots=True)
class _Registrations:
    """Names of the registrations to reconcile after a change."""

    stores: Stores

    def of_registration(self, change: Change) -> Names:
        if not is_held(change):
            yield change.key[1]
        yield from _sharing_a_mark(change, stores=self.stores)
        if matters(change) or changes_demand(change):
            # Each service has a single registration, so the next registration has to take it over at once.
            for name in self._control_planes(change):
                yield from (other for other in self._by("control plane", name) if other != change.key[1])

    def of_control_plane(self, change: Change) -> Names:
        name = change.key[1]
        if matters(change):
            if may_resolve(change):
                yield from self._by("control plane", name)
            # A registration that names another control plane by now may have waited for the end of this one.
            for uid in {uid for obj in (change.old, change.new) if obj for uid in uid_of(obj)}:
                yield from self._by("served", uid)
        if not (matters(change) and may_resolve(change)) and not is_published(change.new):
            # Registrations repeat its messages, which change fast. Only the last message matters to readers, so wait a
            # moment.
            yield from (Delayed(other, _WORDS_SECONDS) for other in self._by("control plane", name))

    def of_class(self, change: Change) -> Names:
        if not only_status(change):
            for name in _names(self.stores.control_planes.by("class", change.key[1])):
                yield from self._by("control plane", name)

    def of_endpoint(self, change: Change) -> Names:
        return self._by("endpoint", change.key[1]) if matters(change) else ()

    def of_secret(self, change: Change) -> Names:
        return self._by("secret", "/".join(change.key))

    def _control_planes(self, change: Change) -> set[str]:
        """Return the control planes that a registration names or serves, before and after a change."""
        versions = [obj for obj in (change.old, change.new) if obj]
        named = {name for obj in versions for name in field_of("spec", "controlPlaneRef", "name")(obj)}
        uids = {uid for obj in versions for uid in served_uids(obj)}
        return named.union(*(_names(self.stores.control_planes.by("uid", uid)) for uid in uids))

    def _by(self, index: str, value: str) -> list[str]:
        return _names(self.stores.registrations.by(index, value))


@dataclass(frozen=True, slots=True)
class _DedicatedMcms:
    """Names of the registrations whose mcm to reconcile after a change."""

    stores: Stores

    def of_registration(self, change: Change) -> Names:
        had_mcm, has_mcm = (bool(stored_condition(obj, DEDICATED_READY)) for obj in (change.old, change.new))
        if (matters(change) or (had_mcm and not has_mcm)) and concerns_mcm(change):
            yield change.key[1]
        yield from _sharing_a_mark(change, stores=self.stores)

    def of_control_plane(self, change: Change) -> Names:
        if matters(change):
            # The mcm runs next to the control plane, and only as long as that exists.
            yield from self._by("control plane", change.key[1])
            for uid in {uid for obj in (change.old, change.new) if obj for uid in uid_of(obj)}:
                yield from self._by("served", uid)

    def of_class(self, change: Change) -> Names:
        # The class determines the placement of the mcm.
        if not only_status(change):
            for control_plane in _names(self.stores.control_planes.by("class", change.key[1])):
                yield from self._by("control plane", control_plane)

    def _by(self, index: str, value: str) -> list[str]:
        return _names(filter(may_need_mcm, self.stores.registrations.by(index, value)))


def _sharing_a_mark(change: Change, *, stores: Stores) -> Iterator[str]:
    """Return the registrations that share the name of an mcm with a new or deleted registration.

    Only the oldest may have the mcm, so each is reconciled when another changes.
    """
    for mark in set(mcm_marks(change.old or {})) ^ set(mcm_marks(change.new or {})):
        yield from _names(stores.registrations.by("mcm", mark))


def enqueue_granted(stores: Stores, *, label: str) -> Handler[Request]:
    """Reconcile a registration when one of its Roles, bindings or ServiceAccounts is deleted or changed.

    New objects enqueue no registration, because the operator created them. Nor do changed ServiceAccounts, which keep
    their rights.
    """

    def granted(_cluster: Cluster, event: Event) -> Iterator[Delayed[Request]]:
        if event.kind == "ADDED" or (event.resource == SERVICE_ACCOUNTS and event.kind == "MODIFIED"):
            return
        # A user may have removed the label.
        for uid in {entry.labels.get(label) for entry in (event.entry, event.old_entry) if entry is not None}:
            for registration in stores.registrations.by("mcm", mcm_mark(uid)) if uid is not None else ():
                if registration["metadata"]["uid"] == uid:
                    yield Delayed(Request(LOCAL, "", registration["metadata"]["name"]), _RESTORED_SECONDS)

    return granted


def _names(objects: Iterable[Object]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]
