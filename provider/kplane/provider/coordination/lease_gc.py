"""Leases that are not renewed any more: of peers that died, and of clusters that have left the fleet."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from kplane.provider.client.client import Client, Object
from kplane.provider.client.resources import LEASES
from kplane.provider.errors import Conflict, NotFound, ProviderError

__all__ = ["LeaseGC"]

_log: Final = logging.getLogger(__name__)

_INTERVAL_SECONDS: Final = 3600.0
"""Interval that Kubernetes uses for Leases of API servers (apiserverleasegc)."""


class LeaseGC:
    """Deletes the Leases of `leases` that did not change between two collections, an hour apart.

    A working process renews its Lease, so an unchanged Lease has no live holder. A Lease is kept if `needed` returns
    true for its name, or if its duration exceeds an hour. The delete names the resourceVersion, so a concurrent
    acquisition keeps the Lease. Every peer collects, each at a random time.
    """

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        leases: Callable[[], Iterable[Object]],
        needed: Callable[[str], bool],
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._leases = leases
        self._needed = needed
        self._before: dict[str, str] = {}
        """resourceVersions at the last collection, by name."""

    async def run(self) -> NoReturn:
        """Collect every hour until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS * random.uniform(1.0, 1.2))  # noqa: S311 - spreads load
            await self.collect()

    async def collect(self) -> None:
        """Delete the Leases that have not changed since the last collection."""
        before = self._before
        candidates = [lease["metadata"] for lease in self._leases() if _lasts_seconds(lease) < _INTERVAL_SECONDS]
        self._before = {
            lease["name"]: lease["resourceVersion"] for lease in candidates if not self._needed(lease["name"])
        }
        for metadata in candidates:
            name, version = metadata["name"], metadata["resourceVersion"]
            if self._before.get(name) == version == before.get(name):
                await self._delete(name, metadata)

    async def _delete(self, name: str, metadata: Object) -> None:
        try:
            await self._client.delete(
                LEASES,
                name,
                namespace=self._namespace,
                uid=metadata["uid"],
                resource_version=metadata["resourceVersion"],
            )
        except (NotFound, Conflict):
            return  # another peer has deleted or acquired the Lease
        except ProviderError as error:
            _log.warning("failed to delete the old Lease %s: %s; retrying in an hour", name, error)
            return
        _log.info("deleted Lease %s: it was not renewed for an hour", name)


def _lasts_seconds(lease: Object) -> float:
    spec: dict[str, Any] = lease.get("spec") or {}
    return float(spec.get("leaseDurationSeconds") or 0)
