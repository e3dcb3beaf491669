"""Engagement of a cluster: owns all tasks that work on the cluster, and awaits their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from typing_extensions import override

from kplane.provider.aio.cancellation import asked_to_end, complete, end_tasks
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import title_of
from kplane.provider.errors import ProviderError

__all__ = ["Engagement"]

log: Final = logging.getLogger(__name__)

T = TypeVar("T")


class _Current:
    """Holds the latest description of the cluster, for an engagement and its inner engagements."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.updates = 0
        self.updated = asyncio.Event()

    def set(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.updates += 1
        updated, self.updated = self.updated, asyncio.Event()
        updated.set()


class Engagement:
    """Owns every task that works on a cluster. Each new engagement of a fleet has a higher `generation`.

    An engagement can have inner engagements (`inner()`), which share its cluster and are closed before it.
    """

    def __init__(self, cluster: Cluster, *, generation: int, current: _Current | None = None) -> None:
        self.generation: Final = generation
        self._shares_cluster = current is not None
        self._current = current if current is not None else _Current(cluster)
        self._inner: set[Engagement] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._callbacks: list[Callable[[], Awaitable[None] | None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    @override
    def __repr__(self) -> str:
        return f"Engagement({self.cluster.name!r}, generation={self.generation})"

    @property
    def cluster(self) -> Cluster:
        """The latest description of the cluster."""
        return self._current.cluster

    @property
    def closing(self) -> bool:
        """Whether closing has begun, after which `spawn` raises ProviderError."""
        return self._closing is not None

    @property
    def closed(self) -> bool:
        """Whether closing is complete: all tasks have ended, and the callbacks have run."""
        return self._closed

    def inner(self) -> Engagement:
        """Return an inner engagement of the same cluster, which can be closed alone, or closes with this one."""
        self._require_open()
        inner = Engagement(self.cluster, generation=self.generation, current=self._current)
        self._inner = {other for other in self._inner if not other.closed} | {inner}
        return inner

    def spawn(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a coroutine until it ends or the engagement closes; a failure is logged.

        Raises ProviderError once the engagement closes.
        """
        try:
            self._require_open()
        except ProviderError:
            work.close()
            raise
        task = asyncio.create_task(work, name=f"{title_of(self.cluster.name)}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def on_close(self, callback: Callable[[], Awaitable[None] | None]) -> None:
        """Call `callback` at the end, and await it, after all tasks have ended, in reverse order of registration.

        The callback must bound its own time, because closing awaits it. A handler that was added in `engage` outlives
        the engagement unless it is removed: `engagement.on_close(registration.remove)`.
        """
        self._require_open()
        self._callbacks.append(callback)

    async def update(self, cluster: Cluster) -> None:
        """Continue with renewed credentials of the same cluster; iterators of `changes()` see them."""
        await cluster.take_over(self.cluster)
        self._current.set(cluster)

    async def changes(self) -> AsyncIterator[Cluster]:
        """Yield the cluster after each update since the engagement began; of several updates, only the latest."""
        current, updates_seen = self._current, 0
        while True:
            while updates_seen == current.updates:
                await current.updated.wait()
            updates_seen = current.updates
            yield current.cluster

    async def aclose(self) -> None:
        """Cancel and await every task, close inner engagements, run the callbacks, close the client.

        Concurrent and repeated calls are allowed. Closing completes even if a caller is cancelled.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name=f"{title_of(self.cluster.name)}: close")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await end_tasks(tuple(self._tasks), why=f"the engagement of {title_of(self.cluster.name)} ends")
        # Concurrently, because each inner engagement may take its grace period.
        await complete(inner.aclose() for inner in tuple(self._inner))
        while self._callbacks:
            await self._undo(self._callbacks.pop(), what="a callback failed")
        if not self._shares_cluster:
            await self._undo(self.cluster.aclose, what="the cluster could not be closed")
        self._closed = True

    async def _undo(self, callback: Callable[[], Awaitable[None] | None], *, what: str) -> None:
        """Call and await a callback. Log its failure, so that the other callbacks run."""
        try:
            ending = callback()
            if ending is not None:
                await ending
        except (Exception, asyncio.CancelledError):
            if asked_to_end():
                raise
            log.exception("%s: %s at the end of its engagement", title_of(self.cluster.name), what)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task %r failed", task.get_name(), exc_info=error)

    def _require_open(self) -> None:
        if self._closing is not None:
            raise ProviderError(f"the engagement of {title_of(self.cluster.name)} has ended")
