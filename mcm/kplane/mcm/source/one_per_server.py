"""One instance for each API server, if several objects of a source stand for one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from kplane.api.addresses import normalized_address
from kplane.provider import Cluster, Fleet, Provider

__all__ = ["Age", "OnePerServerProvider"]

logger = logging.getLogger(__name__)

Age = tuple[str, str]
"""metadata.creationTimestamp and metadata.uid of an object; the smallest one is the oldest."""


class OnePerServerProvider:
    """A provider that passes on the clusters of another one, but of several with one API server only the oldest.

    An API server is known by its address, in one spelling. Another cluster follows when nothing is left of the one
    before. Clusters that the other provider does not tell, because their credentials are missing, count for nothing.
    """

    def __init__(
        self, provider: Provider, *, age: Callable[[str], Age], refused: Callable[[Cluster, str], None]
    ) -> None:
        """`age` is that of a cluster's object. `refused` gets the reason where an older one has the server."""
        self._provider = provider
        self._age = age
        self._refused = refused

    @property
    def name(self) -> str:
        """That of the provider that knows the clusters, for logs and metrics."""
        return self._provider.name

    async def run(self, fleet: Fleet) -> None:
        """See `Provider.run`."""
        await self._provider.run(_OnePerServerFleet(fleet, age=self._age, refused=self._refused))


class _Wish(NamedTuple):
    cluster: Cluster
    server: str
    age: Age


class _OnePerServerFleet:
    """The fleet as the provider below sees it: it has all clusters, also those that are refused."""

    def __init__(self, fleet: Fleet, *, age: Callable[[str], Age], refused: Callable[[Cluster, str], None]) -> None:
        self._fleet = fleet
        self._age = age
        self._refused = refused
        self._wishes: dict[str, _Wish] = {}
        self._passed_on: Final[dict[str, str]] = {}
        """Servers of the clusters that the fleet has, or may have."""
        self._told: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add_or_replace(self, cluster: Cluster) -> None:
        """As Fleet's, where no older cluster has the server; else that is told."""
        wish = _Wish(cluster, _server(cluster), self._age(cluster.name))
        self._wishes[cluster.name] = wish
        former = self._passed_on.get(cluster.name)
        if former is not None and former != wish.server:
            await self._settle(former)
        await self._settle(wish.server)

    async def remove(self, name: str) -> None:
        """As Fleet's; the next cluster of that server follows."""
        wish, server = self._wishes.pop(name, None), self._passed_on.get(name)
        self._told.pop(name, None)
        if server is not None:
            await self._settle(server)
        elif wish is None:
            await self._fleet.remove(name)

    def get(self, name: str) -> Cluster:
        """As Fleet's."""
        wish = self._wishes.get(name)
        return self._fleet.get(name) if wish is None or name in self._passed_on else wish.cluster

    def names(self) -> list[str]:
        """As Fleet's."""
        return sorted({*self._fleet.names(), *self._wishes})

    async def _settle(self, server: str) -> None:
        """Have the fleet have the oldest cluster of a server, and no other one of it. May be repeated at any time."""
        async with self._locks.setdefault(server, asyncio.Lock()):
            while leaving := [name for name in self._present(server) if name != self._holder(server)]:
                await self._fleet.remove(leaving[0])
                del self._passed_on[leaving[0]]
            holder = self._holder(server)
            if holder is not None:
                self._passed_on[holder] = server
                self._told.pop(holder, None)
                await self._fleet.add_or_replace(self._wishes[holder].cluster)
        self._tell(server)

    def _present(self, server: str) -> list[str]:
        return [name for name, each in self._passed_on.items() if each == server]

    def _holder(self, server: str) -> str | None:
        wishes = [wish for wish in self._wishes.values() if wish.server == server]
        return min(wishes, key=lambda wish: wish.age).cluster.name if wishes else None

    def _tell(self, server: str) -> None:
        holder = self._holder(server)
        for name, wish in self._wishes.items():
            if holder is None or wish.server != server or name == holder or self._told.get(name) == holder:
                continue
            self._told[name] = holder
            why = f"{holder}, which is older, has the API server at {server}; delete one of the two or correct its URL"
            logger.warning("cluster %s has no instance: %s", name, why)
            self._refused(wish.cluster, why)


def _server(cluster: Cluster) -> str:
    try:
        return normalized_address(cluster.config.server)
    except ValueError:
        return cluster.config.server
