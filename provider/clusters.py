"""The clusters of a fleet that are engaged: at most one engagement for each name at any time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Iterable
from typing import Final

from provider.aware import Aware
from provider.backoff import Backoff
from provider.cluster import Cluster
from provider.engagement import Engagement
from provider.errors import ClusterNotFound, ClusterNotReady, ProviderError

__all__ = ["Clusters"]

log: Final = logging.getLogger(__name__)


class _Slot:
    """What is wanted for a name, and what is there."""

    def __init__(self) -> None:
        self.wanted: Cluster | None = None
        self.engagement: Engagement | None = None
        self.lock = asyncio.Lock()
        self.users = 0


class Clusters:
    """Engages every aware with every cluster. Each name goes its own way: a slow one blocks no other.

    `engage_timeout_seconds` is how long an aware's `engage` may take; one that fails or takes longer is undone and
    tried again with growing delays up to `retry_maximum_seconds`.
    """

    def __init__(
        self,
        *,
        awares: Iterable[Aware] = (),
        engage_timeout_seconds: float = 60.0,
        retry_initial_seconds: float = 1.0,
        retry_maximum_seconds: float = 60.0,
    ) -> None:
        self._awares: list[Aware] = list(awares)
        self._slots: dict[str, _Slot] = {}
        self._failures: dict[tuple[int, int], str] = {}
        self._generations = itertools.count(1)
        self._closed = False
        self._engage_timeout_seconds = engage_timeout_seconds
        self._retry_initial_seconds = retry_initial_seconds
        self._retry_maximum_seconds = retry_maximum_seconds

    def add_aware(self, aware: Aware) -> None:
        """Engage one more aware with every cluster, those that are there already included."""
        self._awares.append(aware)
        for engagement in self.engagements():
            self._begin(aware, engagement)

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Make this the cluster of its name, and return when it is.

        Where it continues the present one, the engagement goes on with the new credentials. Otherwise it is closed, and
        that awaited, before the new one begins. Where calls overlap, the cluster of the latest one stays. Awares are
        engaged in the background. Raises ProviderError after `aclose()`.
        """
        if self._closed:
            raise ProviderError(f"cluster {cluster.name!r} cannot be added: the fleet is closed")
        await self._want(cluster.name, cluster)

    async def remove(self, name: str) -> None:
        """Close the engagement of a cluster and return when nothing of it is left; an unknown name is no error."""
        if name in self._slots:
            await self._want(name, None)

    def get(self, name: str) -> Cluster:
        """The cluster of that name; raises ClusterNotFound, or ClusterNotReady while it is being engaged."""
        slot = self._slots.get(name)
        if slot is None or slot.wanted is None:
            raise ClusterNotFound(f"there is no cluster {name!r}")
        if slot.engagement is None or slot.engagement.closing:
            raise ClusterNotReady(f"cluster {name!r} is being engaged; try again soon")
        return slot.engagement.cluster

    def names(self) -> list[str]:
        """Names of all wanted clusters, sorted."""
        return sorted(name for name, slot in self._slots.items() if slot.wanted is not None)

    def engagements(self) -> list[Engagement]:
        """The live engagements, sorted by the cluster's name."""
        live = [slot.engagement for slot in self._slots.values() if slot.engagement is not None]
        return sorted((found for found in live if not found.closing), key=lambda found: found.cluster.name)

    def failure(self, name: str) -> str | None:
        """Why an aware is not engaged with a live cluster, as a sentence; None where all are or were not tried yet."""
        slot = self._slots.get(name)
        generation = slot.engagement.generation if slot is not None and slot.engagement is not None else 0
        return next((why for key, why in self._failures.items() if key[0] == generation), None)

    async def aclose(self) -> None:
        """Close every engagement, all at once, and take no more clusters; afterwards nothing is left."""
        self._closed = True
        await asyncio.gather(*(self._want(name, None) for name in tuple(self._slots)))

    async def _want(self, name: str, cluster: Cluster | None) -> None:
        async with self._slot(name) as slot:
            slot.wanted = cluster
            async with slot.lock:
                # Whoever holds the lock brings about the latest wish; the callers of overtaken ones find it done.
                while not self._settled(slot):
                    await self._step(slot)

    @contextlib.asynccontextmanager
    async def _slot(self, name: str) -> AsyncIterator[_Slot]:
        slot = self._slots.setdefault(name, _Slot())
        slot.users += 1
        try:
            yield slot
        finally:
            slot.users -= 1
            if not slot.users and slot.wanted is None and slot.engagement is None:
                del self._slots[name]

    @staticmethod
    def _settled(slot: _Slot) -> bool:
        engagement = slot.engagement
        if engagement is None:
            return slot.wanted is None
        return slot.wanted is not None and not engagement.closing and engagement.cluster.equals(slot.wanted)

    async def _step(self, slot: _Slot) -> None:
        wanted, present = slot.wanted, slot.engagement
        if present is None:
            if wanted is not None:
                slot.engagement = self._engage(wanted)
        elif wanted is not None and not present.closing and wanted.continues(present.cluster):
            await present.update(wanted)
        else:
            await present.aclose()
            slot.engagement = None
            self._failures = {key: why for key, why in self._failures.items() if key[0] != present.generation}

    def _engage(self, cluster: Cluster) -> Engagement:
        engagement = Engagement(cluster, generation=next(self._generations))
        log.info("cluster %s: engaged, generation %d", cluster.name, engagement.generation)
        for aware in self._awares:
            self._begin(aware, engagement)
        return engagement

    def _begin(self, aware: Aware, engagement: Engagement) -> None:
        _ = engagement.spawn(self._keep_trying(aware, engagement), name=f"engage {type(aware).__name__}")

    async def _keep_trying(self, aware: Aware, engagement: Engagement) -> None:
        backoff = Backoff(initial_seconds=self._retry_initial_seconds, maximum_seconds=self._retry_maximum_seconds)
        key = (engagement.generation, id(aware))
        while True:
            attempt = engagement.inner()
            try:
                async with asyncio.timeout(self._engage_timeout_seconds):
                    await aware.engage(attempt)
            except Exception as error:
                delay = backoff.next_delay()
                name, who = engagement.cluster.name, type(aware).__name__
                self._failures[key] = f"{who} cannot engage: {str(error) or type(error).__name__}"
                log.warning("cluster %s: %s, again in %.1f s", name, self._failures[key], delay, exc_info=error)
            else:
                self._failures.pop(key, None)
                return
            await attempt.aclose()
            await asyncio.sleep(delay)
