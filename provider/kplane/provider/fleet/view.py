"""The clusters of a fleet as a provider sees them: its own, under the names that it gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kplane.provider.fleet.cluster import Cluster

if TYPE_CHECKING:
    from kplane.provider.contracts import Provider

__all__ = ["Fleet", "FleetView"]


class Fleet(Protocol):
    """What a provider tells of its clusters."""

    async def add_or_replace(self, cluster: Cluster) -> None:
        """Make this the cluster of its name, and return when it is.

        Where it continues the present one, with credentials that were renewed, the engagement goes on. Otherwise that
        is closed, which is awaited, before the new one begins.
        """

    async def remove(self, name: str) -> None:
        """Close the engagement of a cluster and return when nothing of it is left; an unknown name is no error."""

    def get(self, name: str) -> Cluster:
        """The cluster of that name; raises ClusterNotFound, or ClusterNotReady while it is being engaged."""

    def names(self) -> list[str]:
        """Names of the provider's clusters, sorted."""


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
