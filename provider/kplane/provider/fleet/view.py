"""The clusters of a fleet as a provider sees them: its own, under the names that it gives them."""

from __future__ import annotations

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet, Provider

__all__ = ["FleetView"]


class FleetView:
    """The part of a fleet that is one provider's: its names get `prefix` in front, and its clusters say where from."""

    def __init__(self, fleet: Fleet, *, provider: Provider, prefix: str = "") -> None:
        self._fleet = fleet
        self._provider = provider
        self._prefix = prefix

    async def add_or_replace(self, cluster: Cluster) -> None:
        """As Fleet's."""
        cluster.note_origin(self._provider)
        if self._prefix:
            cluster = cluster.renamed(f"{self._prefix}{cluster.name}")
        await self._fleet.add_or_replace(cluster)

    async def remove(self, name: str) -> None:
        """As Fleet's."""
        await self._fleet.remove(f"{self._prefix}{name}")

    def get(self, name: str) -> Cluster:
        """As Fleet's; the cluster has the name that the whole fleet knows it by."""
        return self._fleet.get(f"{self._prefix}{name}")

    def names(self) -> list[str]:
        """As Fleet's."""
        return [name.removeprefix(self._prefix) for name in self._fleet.names() if name.startswith(self._prefix)]
