"""View of a fleet for a provider."""

from __future__ import annotations

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet, Provider

__all__ = ["FleetView"]


class FleetView:
    """View of a fleet for a provider: adds `prefix` to names, and the provider to the origins of clusters.

    The view lists clusters with the prefix; without a prefix, clusters that the provider added. So a provider that
    removes all clusters it does not know leaves clusters that the program itself added.
    """

    def __init__(self, fleet: Fleet, *, provider: Provider, prefix: str = "") -> None:
        self._fleet = fleet
        self._provider = provider
        self._prefix = prefix
        self._added: set[str] = set()

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Add or replace a cluster, as `Fleet.add_or_replace`."""
        cluster.note_origin(self._provider)
        if self._prefix:
            cluster = cluster.renamed(f"{self._prefix}{cluster.name}")
        self._added.add(cluster.name)
        await self._fleet.add_or_replace(cluster)

    async def remove(self, name: str) -> None:
        """Remove a cluster, as `Fleet.remove`."""
        await self._fleet.remove(f"{self._prefix}{name}")
        self._added.discard(f"{self._prefix}{name}")

    def get(self, name: str) -> Cluster:
        """Return a cluster, which has its full name, as `Fleet.get`."""
        return self._fleet.get(f"{self._prefix}{name}")

    def names(self) -> list[str]:
        """Return names without the prefix, as `Fleet.names`."""
        names = self._fleet.names()
        if not self._prefix:
            return [name for name in names if name in self._added]
        return [name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)]
