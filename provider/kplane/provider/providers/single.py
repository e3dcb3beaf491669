"""One cluster, given by the program."""

from __future__ import annotations

from kplane.provider.cluster.cluster import Cluster
from kplane.provider.contracts import Fleet

__all__ = ["SingleProvider"]


class SingleProvider:
    """Engages the one cluster that it is given, for as long as the manager runs.

    The cluster keeps its name and its credentials; a token file or an exec plugin in its configuration goes on being
    asked, anything else does not change. The fleet closes it in the end. As upstream's `providers/single`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def name(self) -> str:
        """For logs and metrics."""
        return "single"

    async def run(self, fleet: Fleet) -> None:
        """Engage it and return: there is nothing more to tell."""
        await fleet.add_or_replace(self._cluster)
