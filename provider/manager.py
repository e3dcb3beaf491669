"""Runs a provider and keeps what follows its clusters engaged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from provider.aware import Aware, Provider
from provider.backoff import Backoff
from provider.cluster import Cluster
from provider.clusters import Clusters
from provider.errors import ProviderError

__all__ = ["Manager"]

log: Final = logging.getLogger(__name__)


class Manager:
    """The clusters of a provider, and the awares that work on each of them.

    Use `await manager.run(stop)`, or `async with manager`. At the end every engagement is closed, which is awaited.
    A manager runs once.
    """

    def __init__(self, provider: Provider, *, awares: Iterable[Aware] = ()) -> None:
        self._provider = provider
        self._clusters = Clusters(awares=awares)
        self._running: asyncio.Task[None] | None = None

    @property
    def clusters(self) -> Clusters:
        """The fleet."""
        return self._clusters

    def add(self, aware: Aware) -> None:
        """Engage one more aware, also with the clusters that are engaged already."""
        self._clusters.add_aware(aware)

    def get_cluster(self, name: str) -> Cluster:
        """An engaged cluster; raises ClusterNotFound and ClusterNotReady."""
        return self._clusters.get(name)

    def cluster_names(self) -> list[str]:
        """Names of all clusters, sorted."""
        return self._clusters.names()

    async def run(self, until: asyncio.Event) -> None:
        """Run until the event is set."""
        async with self:
            await until.wait()

    async def __aenter__(self) -> Self:
        if self._running is not None:
            raise ProviderError("a manager runs once")
        self._running = asyncio.create_task(self._keep_running(), name=f"provider {self._provider.name}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._running is not None:
                self._running.cancel()
                await asyncio.wait([self._running])
        finally:
            await self._clusters.aclose()

    async def _keep_running(self) -> None:
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=60.0)
        while True:
            try:
                await self._provider.run(self._clusters)
            except Exception:
                delay = backoff.next_delay()
                log.exception("provider %s failed, again in %.1f s", self._provider.name, delay)
                await asyncio.sleep(delay)
            else:
                log.info("provider %s has told all that it knows", self._provider.name)
                return
