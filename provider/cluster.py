"""One cluster of a fleet, as its provider describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from typing_extensions import override

from provider.client import Client
from provider.kubeconfig import ClusterConfig

__all__ = ["Cluster"]


class Cluster:
    """A description that does not change; renewed credentials make a new one, which takes over the client.

    `credentials` is raw data that came with the cluster (keys and values of a Secret), never shown in a repr.
    `attributes` are what consumers configure themselves by; where one changes, it counts as another cluster.
    """

    def __init__(
        self,
        name: str,
        *,
        config: ClusterConfig,
        credentials: Mapping[str, bytes] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self.name: Final = name
        self.config: Final = config
        self.credentials: Final[Mapping[str, bytes]] = dict(credentials or {})
        self.attributes: Final[Mapping[str, str]] = dict(attributes or {})
        self._client: Client | None = None

    @override
    def __repr__(self) -> str:
        return f"Cluster({self.name!r}, server={self.config.server!r}, attributes={self.attributes!r})"

    @property
    def client(self) -> Client:
        """The client of this cluster, made on first use; it lives as long as the cluster is engaged."""
        if self._client is None:
            self._client = Client(self.config)
        return self._client

    def continues(self, previous: Cluster) -> bool:
        """Whether this is the cluster of `previous`, with credentials or a CA that were renewed at most."""
        return self.attributes == previous.attributes and self.config.continues(previous.config)

    def equals(self, other: Cluster) -> bool:
        """Whether nothing at all differs, credentials included."""
        return (self.name, self.config, self.credentials, self.attributes) == (
            other.name,
            other.config,
            other.credentials,
            other.attributes,
        )

    async def take_over(self, previous: Cluster) -> None:
        """Go on with the client of the same cluster's previous description, with this one's credentials."""
        if previous._client is not None:
            await previous._client.update(self.config)
            self._client, previous._client = previous._client, self._client

    async def aclose(self) -> None:
        """Close the client."""
        if self._client is not None:
            await self._client.aclose()
