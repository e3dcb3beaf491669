"""Desired clusters of a provider, which are applied to its fleet concurrently."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Final

from kplane.provider.aio.backoff import Backoff
from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError

__all__ = ["DesiredClusters"]

log: Final = logging.getLogger(__name__)


class DesiredClusters:
    """Reconciles a fleet with the desired clusters, in a task of `tasks` for each name with pending changes.

    So a cluster that stops slowly, or that the fleet refuses, delays no other cluster. A failure is retried with
    growing delays, with the latest desired state. `what` names the kind in log messages.
    """

    def __init__(self, fleet: Fleet, tasks: asyncio.TaskGroup, *, what: str) -> None:
        self._fleet = fleet
        self._tasks = tasks
        self._what = what
        self._desired: dict[str, Cluster] = {}
        self._changed: dict[str, asyncio.Event] = {}

    def want(self, cluster: Cluster) -> None:
        """Set the desired cluster of a name."""
        desired = self._desired.get(cluster.name)
        if desired is None or not desired.equals(cluster):
            self._desired[cluster.name] = cluster
            self._touch(cluster.name)

    def drop(self, name: str) -> None:
        """Remove the desired cluster of a name."""
        if self._desired.pop(name, None) is not None:
            self._touch(name)

    def want_only(self, clusters: Iterable[Cluster]) -> None:
        """Set all desired clusters; other clusters leave the fleet, even clusters of an earlier run of the provider."""
        desired = {cluster.name: cluster for cluster in clusters}
        for cluster in desired.values():
            self.want(cluster)
        self.forget_others(desired)

    def forget_others(self, names: Iterable[str]) -> None:
        """Remove all clusters with other names."""
        kept = set(names)
        for name in {*self._desired, *self._fleet.names()} - kept:
            self._desired.pop(name, None)
            self._touch(name)

    def _touch(self, name: str) -> None:
        changed = self._changed.get(name)
        if changed is None:
            changed = self._changed[name] = asyncio.Event()
            self._tasks.create_task(self._reconcile(name, changed), name=f"{self._what} {name}")
        changed.set()

    async def _reconcile(self, name: str, changed: asyncio.Event) -> None:
        backoff = Backoff(initial_seconds=0.5, maximum_seconds=30.0)
        while changed.is_set():
            changed.clear()
            try:
                await self._apply(name)
            except Exception as error:
                delay = backoff.next_delay()
                unexpected = None if isinstance(error, ProviderError) else error
                log.warning(
                    "failed to update %s %s: %s; retrying in %.1f s",
                    self._what,
                    name,
                    error,
                    delay,
                    exc_info=unexpected,
                )
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await changed.wait()
                changed.set()
        del self._changed[name]

    async def _apply(self, name: str) -> None:
        cluster = self._desired.get(name)
        if cluster is None:
            await self._fleet.remove(name)
        else:
            await self._fleet.add_or_replace(cluster)
