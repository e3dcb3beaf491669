"""Posts Kubernetes Events in the background, best effort."""

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
from kplane.provider.client.resources import EVENTS
from kplane.provider.cluster.context import cluster_context, current_cluster
from kplane.provider.errors import AlreadyExists, NotFound, ProviderError, ServerError, TooManyRequests, Unreachable

__all__ = ["EventRecorder"]

log: Final = logging.getLogger(__name__)

_WAITING_AT_MOST: Final = 1000
_KNOWN_AT_MOST: Final = 1000
_TRIES: Final = 6
_MESSAGE_AT_MOST: Final = 1024
_REASON_AT_MOST: Final = 128
_DEFAULT_NAMESPACE: Final = "default"
"""Where Kubernetes keeps the Events of objects that have no namespace."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


@dataclass(slots=True, eq=False)
class _Waiting:
    """An Event to post, and how often it has happened since it was posted last."""

    body: dict[str, Any]
    cluster: str | None
    """Cluster of the reconcile that said it."""
    times: int = 1


class EventRecorder:
    """Posts Events to one cluster in the background: `recorder.event(found, "Normal", "Created", "made a volume")`.

    Events go to the namespace of their object. A repeated Event (same object, type, reason and message) raises the
    count of the first one, also after a restart, at most every `repeat_seconds`. Up to a thousand Events wait; more are
    dropped. Dropped and failed Events are logged. The recorder has a task only while an Event waits; `aclose()` ends it
    and drops what waits.

    `client` returns the client of the cluster when it is needed; `component` is the source of the Events.
    """

    def __init__(self, client: Callable[[], Client], *, component: str, repeat_seconds: float = 10.0) -> None:
        self._client = client
        self._component = component
        self._instance = f"{component}-{socket.gethostname()}"[:_REASON_AT_MOST]
        self._repeat_seconds = repeat_seconds
        self._waiting: dict[str, _Waiting] = {}
        self._due: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._posted_at: OrderedDict[str, float] = OrderedDict()
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
    ) -> None:
        """Add an Event about an object; returns at once. After `aclose` the Event is dropped.

        Raises ProviderError if `about` has no apiVersion, kind or name, or if `type` is another one.
        """
        if type not in {"Normal", "Warning"}:
            raise ProviderError(f"an Event is Normal or Warning, and not {type!r}")
        if self._closed:
            return
        body = self._body(about, kind=type, reason=reason, message=message)
        name = body["metadata"]["name"]
        known = self._waiting.get(name)
        if known is not None:
            known.times += 1
            known.cluster = current_cluster()
            known.body["lastTimestamp"] = body["lastTimestamp"]
        elif len(self._waiting) >= _WAITING_AT_MOST:
            self._drop(f"Event {reason}", why=f"{_WAITING_AT_MOST} others wait to be posted")
        else:
            self._waiting[name] = _Waiting(body, current_cluster())
            posted_at = self._posted_at.get(name)
            now = asyncio.get_running_loop().time()
            due = now if posted_at is None else max(now, posted_at + self._repeat_seconds)
            heapq.heappush(self._due, (due, next(self._order), name))
            self._more.set()
            if self._task is None:
                # In a context of its own: posting is no part of the reconcile that said it.
                self._task = asyncio.create_task(
                    self._post_all(), name=f"events of {self._component}", context=contextvars.Context()
                )

    async def aclose(self) -> None:
        """End the recorder, and drop the Events that wait."""
        self._closed = True
        self._waiting.clear()
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
                            await self._more.wait()  # one that is due at once may come
                    continue
                heapq.heappop(self._due)
                await self._post(name, self._waiting.pop(name))
                self._posted_at[name] = loop.time()
                self._posted_at.move_to_end(name)
                if len(self._posted_at) > _KNOWN_AT_MOST:
                    self._posted_at.popitem(last=False)
        finally:
            self._task = None

    async def _post(self, name: str, event: _Waiting) -> None:
        # Who may not write in that reconcile any more, because another process does, must not do so here either.
        with cluster_context(event.cluster) if event.cluster is not None else contextlib.nullcontext():
            await self._post_with_retries(name, event)

    async def _post_with_retries(self, name: str, event: _Waiting) -> None:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=30.0)
        while True:
            try:
                return await self._write(name, event)
            except (Unreachable, ServerError, TooManyRequests) as error:
                delay = backoff.next_delay()
                if backoff.failures >= _TRIES:
                    return self._drop(f"Event {event.body['reason']}", why=str(error))
            except ProviderError as error:
                return self._drop(f"Event {event.body['reason']}", why=str(error))
            await asyncio.sleep(delay)

    async def _write(self, name: str, event: _Waiting) -> None:
        client, namespace = self._client(), event.body["metadata"]["namespace"]
        if name not in self._posted_at:
            try:
                await client.create(EVENTS, {**event.body, "count": event.times})
            except AlreadyExists:
                pass
            else:
                return
        try:
            known = await client.get(EVENTS, name, namespace=namespace)
        except NotFound:  # the server forgets them after an hour
            await client.create(EVENTS, {**event.body, "count": event.times})
            return
        count = known.get("count")
        again = {
            "count": (count if isinstance(count, int) else 1) + event.times,
            "lastTimestamp": event.body["lastTimestamp"],
        }
        await client.patch(EVENTS, name, again, namespace=namespace)

    def _drop(self, what: str, *, why: str) -> None:
        self._dropped += 1
        # The first of many, and how many there are, but not each.
        if self._dropped & (self._dropped - 1) == 0:
            log.warning("failed to post %s of %s (%d dropped so far): %s", what, self._component, self._dropped, why)

    def _body(self, about: Mapping[str, Any], *, kind: str, reason: str, message: str) -> dict[str, Any]:
        metadata = about.get("metadata") or {}
        name, namespace, uid = metadata.get("name"), metadata.get("namespace") or "", metadata.get("uid") or ""
        if not (name and about.get("apiVersion") and about.get("kind")):
            raise ProviderError("an Event is about an object that has apiVersion, kind and metadata.name")
        reason, message = _cut(reason, _REASON_AT_MOST), _cut(message, _MESSAGE_AT_MOST)
        parts = (self._component, about["apiVersion"], about["kind"], namespace, name, uid, kind, reason, message)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        prefix = name[:200].rstrip(".-")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        involved = {"apiVersion": about["apiVersion"], "kind": about["kind"], "name": name, "uid": uid}
        return {
            "metadata": {
                # Some names, such as those of roles, are more than an Event's may be.
                "name": f"{prefix}.{digest}" if _NAME.fullmatch(prefix) else f"event.{digest}",
                "namespace": namespace or _DEFAULT_NAMESPACE,
            },
            "involvedObject": {**involved, "namespace": namespace} if namespace else involved,
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
        }


def _cut(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"
