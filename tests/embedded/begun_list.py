"""A list that a client began before its control plane changed its etcd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from kplane.provider import Client
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.errors import Expired

__all__ = ["BegunList"]


@dataclass(frozen=True)
class BegunList:
    """A list of namespaces whose first page a client has read."""

    version: str
    continued: str

    @classmethod
    async def of(cls, tenant: Client) -> Self:
        metadata = (await _page(tenant, limit="1"))["metadata"]
        return cls(metadata["resourceVersion"], metadata["continue"])

    async def is_refused(self, tenant: Client) -> bool:
        """Tell whether the server refuses both the next page and the same list at its exact version."""
        for query in (
            {"continue": self.continued},
            {"resourceVersion": self.version, "resourceVersionMatch": "Exact"},
        ):
            try:
                await _page(tenant, **query)
            except Expired:
                continue
            return False
        return True


async def _page(tenant: Client, **query: str) -> dict[str, Any]:
    return dict(await tenant.request("GET", NAMESPACES.path(), params=query))
