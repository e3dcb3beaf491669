"""Names of objects that the operator's controllers would reconcile after changes in the stores."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kplane.controlplane_operator.addons.watches import watch_addons
from kplane.controlplane_operator.classes.watches import watch_classes
from kplane.controlplane_operator.controlplanes.watches import watch_control_planes
from kplane.controlplane_operator.endpoints.watches import watch_endpoints
from kplane.controlplane_operator.registrations.watches import watch_dedicated_mcms, watch_registrations
from kplane.controlplane_operator.snapshots.watches import watch_schedules, watch_snapshots
from kplane.controlplane_operator.watch.cache import Change, Store
from kplane.controlplane_operator.watch.changes import Changes, StoreChanges
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Trigger
from kplane.provider import Request
from kplane.provider.controllers.handlers import Delayed
from kplane.provider.controllers.sources import Channel

WATCHES: dict[str, Any] = {
    "controlplane": watch_control_planes,
    "controlplaneclass": watch_classes,
    "controlplaneendpoint": watch_endpoints,
    "controlplaneregistration": watch_registrations,
    "controlplanesnapshot": watch_snapshots,
    "controlplaneaddons": watch_addons,
    "snapshotschedule": watch_schedules,
    "dedicatedmcm": watch_dedicated_mcms,
}


def taken(trigger: Trigger) -> set[str]:
    """Return the names that were triggered since the last call, with and without a delay."""
    names = {request.name for request in trigger.channel.waiting}
    trigger.channel = Channel()
    return names


class Watched:
    """Gathers the requests of all controllers from now on."""

    def __init__(self, stores: Stores) -> None:
        self.delayed: dict[str, set[str]] = {}
        """Names with a delay, by controller."""
        self._due: dict[str, set[str]] = {}
        by_kind = {store.resource: store for store in stores.cached()}
        for controller, watch in WATCHES.items():
            watch(_Builder(self, controller, by_kind), stores=stores, changes=Changes())

    def woken(self) -> dict[str, set[str]]:
        """Return the names without a delay by controller, and forget all names."""
        due, self._due, self.delayed = self._due, {}, {}
        return due

    def names(self, controller: str) -> set[str]:
        """Return the names without a delay of a controller, and forget all names."""
        return self.woken().get(controller, set())

    def add(self, controller: str, request: Request | Delayed[Request]) -> None:
        if isinstance(request, Delayed):
            self.delayed.setdefault(controller, set()).add(request.request.name)
        else:
            self._due.setdefault(controller, set()).add(request.name)


class _Builder:
    """Stands in for the builder of a controller, and calls its handlers with the changes of the stores."""

    def __init__(self, watched: Watched, controller: str, stores: dict[Any, Store]) -> None:
        self._watched = watched
        self._controller = controller
        self._stores = stores

    def for_(self, kind: Any, *options: Any) -> None:
        self.watches(kind, lambda _, event: [Request("", "", event.entry.key[1])], *options)

    def watches(self, kind: Any, handler: Callable[..., Any], *options: Any) -> None:
        predicates = [predicate for option in options for predicate in option.predicates]
        store = self._stores.get(kind)
        if store is None:
            return

        def observe(change: Change) -> None:
            event = _event(change)
            if all(predicate(event) for predicate in predicates):
                for request in handler(None, event):
                    self._watched.add(self._controller, request)

        store.listen(observe)

    def watches_raw(self, source: StoreChanges) -> None:
        def observe(change: Change) -> None:
            for name in source.function(change):
                self._watched.add(self._controller, Request("", "", str(name)))

        source.store.listen(observe)


def _event(change: Change) -> Any:
    kind = "ADDED" if change.old is None else "DELETED" if change.new is None else "MODIFIED"
    old = change.old if kind == "MODIFIED" else None
    return SimpleNamespace(kind=kind, object=change.new or change.old, old=old, entry=SimpleNamespace(key=change.key))
