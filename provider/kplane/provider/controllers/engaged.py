"""The sources of a controller in one engaged cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.aio.running import keep_running
from kplane.provider.cache.event import Registration
from kplane.provider.cache.feed import refusal_of
from kplane.provider.client.kinds import parse_kind
from kplane.provider.client.typed import title_of as title_of_kind
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.cluster.context import title_of
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.controllers.sources import (
    Add,
    ClusterSource,
    Engage,
    KindSource,
    RawSource,
    SyncingClusterSource,
    SyncingSource,
)
from kplane.provider.errors import ClusterNotReady, KindMisspelled, ProviderError

__all__ = ["ClusterWatch", "EngagedCluster", "name_of"]

log: Final = logging.getLogger(__name__)

R = TypeVar("R")

_RETRY_SECONDS: Final = 0.5
_MAXIMUM_SECONDS: Final = 60.0

ClusterWatch = KindSource[R] | ClusterSource[R]
"""A source that a controller starts in each cluster."""


class EngagedCluster(Generic[R]):
    """The running sources of a controller in a cluster; the sources call `add`.

    `wants` decides by the `Engage` of a source whether to start the source, and is called once for each source.
    `controller` is a name for logs.
    """

    def __init__(
        self,
        engagement: Engagement,
        *,
        controller: str,
        add: Add[R],
        wants: Callable[[Engage, Cluster], bool],
    ) -> None:
        self.engagement: Final = engagement
        self.add: Final = add
        self.kinds: Final[list[KindSource[R]]] = []
        """Sources of kinds that have started."""
        self.ending: asyncio.Task[None] | None = None
        self._controller = controller
        self._wants = wants
        self._registrations: list[Registration] = []
        self._syncing: list[SyncingSource[R]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._starting = 0
        """Number of sources that have not started yet."""
        self._failures: dict[object, str] = {}
        """Causes for which sources have not started yet."""
        self._started = asyncio.Event()
        """Event that is set, and replaced, when a source has started."""
        self._stopped = asyncio.Event()

    @property
    def cluster(self) -> Cluster:
        """The cluster as last updated."""
        return self.engagement.cluster

    @property
    def failures(self) -> list[str]:
        """Causes for which sources have not started yet, each with the name of the source."""
        return list(self._failures.values())

    @property
    def stopped(self) -> bool:
        """Whether the sources have been stopped."""
        return self._stopped.is_set()

    def start(self, source: ClusterWatch[R], engage: Engage) -> None:
        """Start a source at once if the kinds are discovered in the cluster, otherwise in the background."""
        if isinstance(source, KindSource) and self._is_discovered(source):
            if self._wants(engage, self.cluster):
                self._start(source)
        else:
            self.start_soon(source, engage)

    def start_soon(self, source: ClusterWatch[R], engage: Engage) -> None:
        """Start a source in the background once the cluster serves its kinds. A failure is logged and retried."""
        self._starting += 1
        starting = self._start_when_served(source, engage)
        self._tasks.append(self.engagement.spawn(starting, name=f"{self._controller} watches {name_of(source)}"))

    def stop(self) -> None:
        """Stop all sources. The end of the engagement awaits their tasks."""
        self._stopped.set()
        for registration in self._registrations:
            registration.remove()
        for task in self._tasks:
            task.cancel()

    async def wait_synced(self) -> None:
        """Wait until every source has started and has added requests for all present objects.

        Raises ClusterNotReady if the work on the cluster ends first.
        """
        title = f"{self._controller} on {title_of(self.cluster.name)}"
        syncing = asyncio.create_task(self._all_synced(), name=f"{title}: wait for its sources")
        stopping = asyncio.create_task(self._stopped.wait(), name=f"{title}: wait for its end")
        try:
            await asyncio.wait((syncing, stopping), return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.is_set():
                raise ClusterNotReady(f"the work of {title} has ended")
            await syncing
        finally:
            await end_tasks((syncing, stopping))

    async def _all_synced(self) -> None:
        while self._starting:
            await self._started.wait()
        for registration in tuple(self._registrations):
            await registration.synced.wait()
        for source in tuple(self._syncing):
            await source.wait_synced()

    def _is_discovered(self, source: KindSource[R]) -> bool:
        try:
            return source.discovered(self.cluster)
        except Exception:  # noqa: BLE001 - a custom projection; the background retry logs the failure
            return False

    def _start(self, source: ClusterWatch[R]) -> None:
        if isinstance(source, KindSource):
            self._registrations.append(source.start(self.engagement, self.add))
            self.kinds.append(source)
            return
        raw: RawSource[R] | None
        if isinstance(source, SyncingClusterSource):
            syncing: SyncingSource[R] | None = source.syncing_for_cluster(self.cluster)
            raw = syncing
            if syncing is not None:
                self._syncing.append(syncing)
        else:
            raw = source.for_cluster(self.cluster)
        if raw is not None:
            name = f"{self._controller} {type(raw).__name__}"
            run = raw.run
            self._tasks.append(self.engagement.spawn(keep_running(name, lambda: run(self.add)), name=name))

    async def _start_when_served(self, source: ClusterWatch[R], engage: Engage) -> None:
        waiter = object()
        try:
            await self._start_with_retries(source, engage, waiter=waiter)
        finally:
            self._failures.pop(waiter, None)
            self.cluster.note_refusal(waiter, _kind_of(source), None)
        self._starting -= 1
        started, self._started = self._started, asyncio.Event()
        started.set()

    async def _start_with_retries(self, source: ClusterWatch[R], engage: Engage, *, waiter: object) -> None:
        backoff = Backoff(initial_seconds=_RETRY_SECONDS, maximum_seconds=_MAXIMUM_SECONDS)
        wants: bool | None = None
        logged = ""
        while True:
            try:
                wants = self._wants(engage, self.cluster) if wants is None else wants
                if wants and isinstance(source, KindSource):
                    await source.discover(self.cluster)
                if wants and not self._stopped.is_set():
                    self._start(source)
            except Exception as error:
                # A custom source can raise any error, and a kind can be missing for days: log each cause once.
                cause = str(error) or type(error).__name__
                self._failures[waiter] = f"failed to watch {name_of(source)}: {cause}"
                self.cluster.note_refusal(waiter, _kind_of(source), refusal_of(error))
                if cause != logged:
                    message = "%s: failed to watch %s of cluster %s: %s; retrying"
                    trace = None if isinstance(error, ProviderError) else error
                    # A misspelled kind is a mistake of the program, which no CustomResourceDefinition corrects.
                    level = logging.ERROR if isinstance(error, KindMisspelled) else logging.WARNING
                    log.log(level, message, self._controller, name_of(source), self.cluster.name, cause, exc_info=trace)
                    logged = cause
                await asyncio.sleep(backoff.next_delay())
            else:
                return


def _kind_of(source: object) -> str:
    return str(parse_kind(source.kind)) if isinstance(source, KindSource) else name_of(source)


def name_of(source: object) -> str:
    """Return the name of a source for logs."""
    return title_of_kind(source.kind) if isinstance(source, KindSource) else type(source).__name__
