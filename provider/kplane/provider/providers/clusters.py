"""Provider of clusters that the program adds and removes by calls."""

from __future__ import annotations

import asyncio
from typing import Final

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet
from kplane.provider.errors import ProviderError

__all__ = ["ClustersProvider"]


class ClustersProvider:
    """Engages the clusters that the program adds, until it removes them; upstream's `providers/clusters`.

    `run` engages the clusters that were added before, also when it is called again. A provider serves a single fleet at
    a time.
    """

    def __init__(self) -> None:
        self._clusters: Final[dict[str, Cluster]] = {}
        self._fleet: Fleet | None = None

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "clusters"

    def names(self) -> list[str]:
        """Return the names of all added clusters, sorted."""
        return sorted(self._clusters)

    async def add(self, cluster: Cluster) -> None:
        """Add a cluster, to the fleet as well while the provider runs. Raises ProviderError if the name is taken."""
        if cluster.name in self._clusters:
            raise ProviderError(f"there is a cluster {cluster.name!r} already: remove it first, or use add_or_replace")
        await self.add_or_replace(cluster)

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Add a cluster, or replace the cluster of the same name. Connections stay if only credentials differ."""
        self._clusters[cluster.name] = cluster
        if self._fleet is not None:
            await self._fleet.add_or_replace(cluster)

    async def remove(self, name: str) -> None:
        """Remove a cluster, and return when its engagement has ended. Ignores an unknown name."""
        self._clusters.pop(name, None)
        if self._fleet is not None:
            await self._fleet.remove(name)

    async def run(self, fleet: Fleet) -> None:
        """Apply changes to the fleet until cancelled. Raises ProviderError if the provider runs already."""
        if self._fleet is not None:
            raise ProviderError("this provider runs already: a second fleet needs a second provider")
        self._fleet = fleet
        try:
            async with asyncio.TaskGroup() as tasks:
                for name in {*self._clusters, *fleet.names()}:
                    tasks.create_task(self._apply(fleet, name), name=f"cluster {name}")
            await asyncio.Event().wait()
        finally:
            self._fleet = None

    async def _apply(self, fleet: Fleet, name: str) -> None:
        # Look up the cluster as late as possible: a cluster that was removed meanwhile must not return.
        cluster = self._clusters.get(name)
        if cluster is None:
            await fleet.remove(name)
        else:
            await fleet.add_or_replace(cluster)
