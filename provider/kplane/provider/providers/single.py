"""Provider of a single cluster of the program."""

from __future__ import annotations

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet

__all__ = ["SingleProvider"]


class SingleProvider:
    """Engages the given cluster for as long as the manager runs; upstream's `providers/single`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def name(self) -> str:
        """Name for logs and metrics."""
        return "single"

    async def run(self, fleet: Fleet) -> None:
        """Engage the cluster and return."""
        await fleet.add_or_replace(self._cluster)
