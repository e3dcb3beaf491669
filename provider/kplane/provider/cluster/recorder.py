"""Posts Kubernetes Events (events.k8s.io/v1) in the background, best effort."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import hashlib
import heapq
import itertools
import logging
import re
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.client import Client
from kplane.provider.client.resources import Resource
from kplane.provider.cluster.context import cluster_context, current_cluster
from kplane.provider.cluster.similar import SimilarEvents
from kplane.provider.errors import AlreadyExists, NotFound, ProviderError, ServerError, TooManyRequests, Unreachable

__all__ = ["EventRecorder"]

log: Final = logging.getLogger(__name__)

_EVENTS: Final = Resource("events.k8s.io/v1", "Event", "events", namespaced=True)
_MAX_WAITING: Final = 1000
_MAX_KNOWN: Final = 1000
_ATTEMPTS: Final = 6
_MAX_NOTE: Final = 1024
_MAX_NAME: Final = 128
"""Maximum length of reason, action and reporting instance."""
_DEFAULT_NAMESPACE: Final = "default"
"""Namespace of Events about cluster-scoped objects."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_COMPONENT: Final = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SERIES_ENDS_SECONDS: Final = 360.0
_SERIES_POSTED_SECONDS: Final = 1800.0


@dataclass(slots=True, eq=False)
class _Event:
    """An Event, and the number of its occurrences."""

    body: dict[str, Any]
    cluster: str | None
    """Cluster of the reconcile that reported the Event."""
    observed: str
    observed_at: float
    """Time of the last occurrence on the clock of the event loop; `observed` is the same time as text."""
    count: int = 1
    waits: bool = False
    posted_at: float | None = None
    in_series: bool = False
    """Whether the Event on the API server has a series."""

    def series(self) -> dict[str, Any]:
        """Return the part of the body that changes with each occurrence."""
        return {"series": {"count": self.count, "lastObservedTime": self.observed}} if self.count > 1 else {}


class EventRecorder:
    """Posts Events to one cluster in the background: `recorder.event(found, "Normal", "Created", "made a volume")`.

    Events go to the namespace of their object. A repeated Event (same object, type, reason, action and message) becomes
    a series of the first Event, also after a restart. As in client-go, the second occurrence is posted at once. Later
    occurrences are posted after `series_ends_seconds` without any, or every `series_posted_seconds`. From the eleventh
    message about the same object and reason on, further messages are combined into an Event, so that a message with a
    number in it does not fill the API server.

    Up to a thousand Events wait, and further Events are dropped. Dropped and failed Events are logged. The recorder has
    a task only while an Event waits; `aclose()` stops the task and drops waiting Events.

    `client` returns the client of the cluster on demand; `component` is the reporting controller of the Events. Raises
    ProviderError if the component is no qualified name, such as `volumes` or `example.com/volumes`.
    """

    def __init__(
        self,
        client: Callable[[], Client],
        *,
        component: str,
        series_ends_seconds: float = _SERIES_ENDS_SECONDS,
        series_posted_seconds: float = _SERIES_POSTED_SECONDS,
    ) -> None:
        if not _COMPONENT.fullmatch(component):
            raise ProviderError(
                f"component {component!r} of Events is no qualified name; give one such as 'volumes' or"
                " 'example.com/volumes'"
            )
        self._client = client
        self._component = component
        self._instance = f"{component}-{socket.gethostname()}"[:_MAX_NAME]
        self._series_ends_seconds = series_ends_seconds
        self._series_posted_seconds = series_posted_seconds
        self._similar = SimilarEvents()
        self._events: OrderedDict[str, _Event] = OrderedDict()
        """Waiting Events and recently posted Events, by name."""
        self._due: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._dropped = 0
        self._task: asyncio.Task[None] | None = None
        self._more = asyncio.Event()
        self._closed = False

    def event(
        self,
        about: Mapping[str, Any],
        type: Literal["Normal", "Warning"],  # noqa: A002 - what Kubernetes calls it
        reason: str,
        message: str,
        *,
        action: str = "Reconcile",
        related: Mapping[str, Any] | None = None,
    ) -> None:
        """Enqueue an Event about an object without waiting. After `aclose`, the Event is dropped.

        `reason` is the cause, and `action` the operation: both are machine-readable words, such as `VolumeFull` and
        `Resize`. `related` is a second object, such as a created object.

        Raises ProviderError if `about` or `related` has no apiVersion, kind or name, if reason or action is empty, or
        for another `type`.
        """
        if type not in {"Normal", "Warning"}:
            raise ProviderError(f"an Event is Normal or Warning, and not {type!r}")
        if not reason or not action:
            raise ProviderError("an Event needs a reason and an action, such as 'VolumeFull' and 'Resize'")
        if self._closed:
            return
        now = asyncio.get_running_loop().time()
        body = self._body(about, related, kind=type, reason=reason, action=action, message=message, now=now)
        name = body["metadata"]["name"]
        event = self._events.get(name)
        if event is None:
            if len(self._due) >= _MAX_WAITING:
                self._drop(f"Event {reason}", why=f"{_MAX_WAITING} others wait to be posted")
                return
            event = self._events[name] = _Event(body, current_cluster(), body["eventTime"], now)
            due = now
        else:
            due = now if self._is_urgent(event, now) else self._due_at(event, observed_at=now)
            event.count += 1
            event.cluster = current_cluster()
            event.observed, event.observed_at = body["eventTime"], now
        if not event.waits:
            event.waits = True
            self._schedule(name, until=due)

    def _is_urgent(self, event: _Event, now: float) -> bool:
        """Tell whether an occurrence begins a series, or continues one that has ended."""
        return not event.in_series or now - event.observed_at >= self._series_ends_seconds

    def _due_at(self, event: _Event, *, observed_at: float) -> float:
        """Return the time to post the count of a series whose last occurrence was at `observed_at`."""
        posted_at = event.posted_at if event.posted_at is not None else observed_at
        return min(observed_at + self._series_ends_seconds, posted_at + self._series_posted_seconds)

    def _schedule(self, name: str, *, until: float) -> None:
        heapq.heappush(self._due, (until, next(self._order), name))
        self._more.set()
        if self._task is None:
            # An empty context, because posting is no part of the reconcile that reported the Event.
            self._task = asyncio.create_task(
                self._post_all(), name=f"events of {self._component}", context=contextvars.Context()
            )

    async def aclose(self) -> None:
        """Stop the recorder, and drop waiting Events."""
        self._closed = True
        self._events.clear()
        self._due.clear()
        if self._task is not None:
            await end_tasks([self._task])

    async def _post_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._due:
                self._more.clear()
                due, _, name = self._due[0]
                if due > loop.time():
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout_at(due):
                            await self._more.wait()  # an earlier Event may come
                    continue
                heapq.heappop(self._due)
                event = self._events[name]
                if event.in_series and (later := self._due_at(event, observed_at=event.observed_at)) > loop.time():
                    self._schedule(name, until=later)
                    continue
                event.waits = False
                await self._post(event)
                event.posted_at = loop.time()
                self._forget_old()
        finally:
            self._task = None

    def _forget_old(self) -> None:
        """Forget a posted Event above the limit; if it occurs again, the recorder reads it from the API server."""
        if len(self._events) > _MAX_KNOWN + len(self._due):
            old = next((name for name, event in self._events.items() if not event.waits), None)
            if old is not None:
                del self._events[old]

    async def _post(self, event: _Event) -> None:
        # In the context of the reconcile, so that `before_write` refuses the Event if another process may write now.
        with cluster_context(event.cluster) if event.cluster is not None else contextlib.nullcontext():
            await self._post_with_retries(event)

    async def _post_with_retries(self, event: _Event) -> None:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=30.0)
        while True:
            try:
                return await self._write(event)
            except (Unreachable, ServerError, TooManyRequests) as error:
                delay = backoff.next_delay()
                if backoff.failures >= _ATTEMPTS:
                    return self._drop(f"Event {event.body['reason']}", why=str(error))
            except ProviderError as error:
                return self._drop(f"Event {event.body['reason']}", why=str(error))
            await asyncio.sleep(delay)

    async def _write(self, event: _Event) -> None:
        """Create the Event, or patch the count of the existing Event."""
        client, metadata = self._client(), event.body["metadata"]
        if event.posted_at is not None:
            with contextlib.suppress(NotFound):  # the server forgets Events after an hour
                return await self._patch(client, event)
        series = event.series()
        try:
            await client.create(_EVENTS, {**event.body, **series})
        except AlreadyExists:
            existing = await client.get(_EVENTS, metadata["name"], namespace=metadata["namespace"])
            # With an equal time, an earlier attempt of this process created the Event, but got no answer.
            if existing.get("eventTime") != event.body["eventTime"]:
                event.count += (existing.get("series") or {}).get("count") or 1
            await self._patch(client, event)
        else:
            event.in_series = bool(series)

    async def _patch(self, client: Client, event: _Event) -> None:
        metadata, series = event.body["metadata"], event.series()
        if series:
            await client.patch(_EVENTS, metadata["name"], series, namespace=metadata["namespace"])
            event.in_series = True

    def _drop(self, what: str, *, why: str) -> None:
        self._dropped += 1
        # Log at powers of two only, with the total, so that an outage does not fill the log.
        if self._dropped & (self._dropped - 1) == 0:
            log.warning("failed to post %s of %s (%d dropped so far): %s", what, self._component, self._dropped, why)

    def _body(
        self,
        about: Mapping[str, Any],
        related: Mapping[str, Any] | None,
        *,
        kind: str,
        reason: str,
        action: str,
        message: str,
        now: float,
    ) -> dict[str, Any]:
        regarding = _reference(about)
        other = {"related": _reference(related)} if related is not None else {}
        reason, action = _cut(reason, _MAX_NAME), _cut(action, _MAX_NAME)
        similar = (self._component, kind, reason, action, *regarding.values(), *other.get("related", {}).values())
        note = self._similar.note("\0".join(similar), _cut(message, _MAX_NOTE), now=now)
        digest = hashlib.sha256("\0".join((*similar, note.key)).encode()).hexdigest()[:16]
        prefix = regarding["name"][:200].rstrip(".-")
        return {
            "metadata": {
                # Some names, such as names of roles, are no valid names of Events.
                "name": f"{prefix}.{digest}" if _NAME.fullmatch(prefix) else f"event.{digest}",
                "namespace": regarding.get("namespace") or _DEFAULT_NAMESPACE,
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "regarding": regarding,
            **other,
            "type": kind,
            "reason": reason,
            "action": action,
            "note": _cut(note.text, _MAX_NOTE),
            "reportingController": self._component,
            "reportingInstance": self._instance,
        }


def _reference(about: Mapping[str, Any]) -> dict[str, str]:
    metadata = about.get("metadata") or {}
    fields = {"apiVersion": about.get("apiVersion"), "kind": about.get("kind"), "name": metadata.get("name")}
    if not all(fields.values()):
        raise ProviderError("an Event is about an object that has apiVersion, kind and metadata.name")
    more = {"uid": metadata.get("uid"), "namespace": metadata.get("namespace")}
    return {name: str(value) for name, value in (fields | more).items() if value}


def _cut(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"
