"""Changes of objects, and the handlers that map a change to the names of objects to reconcile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NoReturn, TypeAlias

from kplane.api.names import LAST_USED_ANNOTATION
from kplane.controlplane_operator.watch.cache import Change, Object, Store
from kplane.provider import LOCAL, Cluster, Event, Request
from kplane.provider.controllers.handlers import Delayed, Handler
from kplane.provider.controllers.predicates import Predicate
from kplane.provider.controllers.sources import Add

__all__ = ["Changes", "MapFunction", "Names", "StoreChanges", "matters", "only_status"]

Names: TypeAlias = Iterable[str | Delayed[str]]
MapFunction: TypeAlias = Callable[[Change], Names]
"""Function that returns the names of the objects to reconcile after a change of another object."""

_WORDS: Final = frozenset({"conditions", "phase", "keyFingerprints"})
"""Status fields that repeat other facts, or are messages. No reconciler has to react to them at once."""
_PROGRESS: Final = frozenset({"keys", "bytes", "percent", "lagMilliseconds", "message"})
"""Progress fields of a migration. The migration itself schedules its next reconcile."""


def matters(change: Change) -> bool:
    """Return whether more changed than conditions, phase and progress.

    The operator writes these fields itself. If they caused a reconcile, an object with a new message at
    each attempt would never come to rest. An example is an error of an API server with a request number.
    """
    return _without_words(change.old) != _without_words(change.new)


def only_status(change: Change) -> bool:
    """Return whether the change is of the status alone."""
    return _without_status(change.old) == _without_status(change.new)


def _without_status(obj: Object | None) -> Object | None:
    stripped = _without_words(obj)
    return {**stripped, "status": None} if stripped is not None else None


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


class Changes:
    """Makes handlers and predicates of functions of a change. Handlers of the same event share its change."""

    def __init__(self) -> None:
        self._latest: tuple[Event, Change] | None = None

    def mapped(self, function: MapFunction) -> Handler[Request]:
        """Return a handler that requests reconciles of the objects that `function` names."""

        def handle(_cluster: Cluster, event: Event) -> Iterable[Request | Delayed[Request]]:
            return [_request(name) for name in function(self._of(event))]

        return handle

    def passing(self, function: Callable[[Change], bool]) -> Predicate:
        """Return a predicate that accepts the events for which `function` returns True."""
        return lambda event: function(self._of(event))

    def _of(self, event: Event) -> Change:
        if self._latest is None or self._latest[0] is not event:
            old = event.object if event.kind == "DELETED" else event.old
            self._latest = event, Change(event.entry.key, old, event.object if event.kind != "DELETED" else None)
        return self._latest[1]


class StoreChanges:
    """A source of requests: the changes of a store that no informer of the cache fills, such as one of Secrets."""

    def __init__(self, store: Store, function: MapFunction) -> None:
        self.store: Final = store
        self.function: Final = function

    async def run(self, add: Add[Request]) -> NoReturn:
        """Pass the requests for all present objects, and for every later change, to `add` until cancelled."""

        def observe(change: Change) -> None:
            for name in self.function(change):
                request = _request(name)
                if isinstance(request, Delayed):
                    add(request.request, request.seconds)
                else:
                    add(request)

        self.store.listen(observe)
        try:
            self.store.replay(observe)
            await asyncio.get_running_loop().create_future()
        finally:
            self.store.ignore(observe)
        raise AssertionError


def _request(name: str | Delayed[str]) -> Request | Delayed[Request]:
    if isinstance(name, Delayed):
        return Delayed(Request(LOCAL, "", name.request), name.seconds)
    return Request(LOCAL, "", name)
