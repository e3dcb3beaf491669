"""A manager as a single-cluster component sees it: its cluster is a member of the fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kplane.provider.client.client import Client
from kplane.provider.contracts import Aware, LocalAware, Runnable
from kplane.provider.fleet.cluster import Cluster

if TYPE_CHECKING:
    from kplane.provider.manager.manager import Manager

__all__ = ["ScopedManager"]


class ScopedManager:
    """Reads and writes one cluster; what is added runs with the manager. Upstream's scopedManager."""

    def __init__(self, manager: Manager, name: str) -> None:
        self.manager: Final = manager
        self.name: Final = name

    @property
    def cluster(self) -> Cluster:
        """The cluster as it is now; raises what `Manager.get_cluster` does."""
        return self.manager.get_cluster(self.name)

    @property
    def client(self) -> Client:
        """The client of the cluster."""
        return self.cluster.client

    def add(self, what: Aware | LocalAware | Runnable) -> None:
        """As `Manager.add`."""
        self.manager.add(what)
