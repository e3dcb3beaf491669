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

_LOOK_SECONDS: Final = 3600.0
"""As the Leases of API servers (apiserverleasegc of Kubernetes)."""


class LeaseGC:
    """Deletes the Leases of `leases` that did not change from one look to the next, an hour later.

    Who is at work renews its Lease, so no process is behind such a one. A Lease is kept if `needed` says so of its
    name, or if it lasts longer than that hour. It is deleted only as it was seen: who takes it at that moment keeps it.
    Every peer looks, and each at its own time.
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
        """Versions at the last look, by name."""

    async def run(self) -> NoReturn:
        """Look again and again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS * random.uniform(1.0, 1.2))  # noqa: S311 - spreads load
            await self.collect()

    async def collect(self) -> None:
        """Look once, and delete what the last look has seen as it is now."""
        before = self._before
        candidates = [lease["metadata"] for lease in self._leases() if _lasts_seconds(lease) < _LOOK_SECONDS]
        self._before = {each["name"]: each["resourceVersion"] for each in candidates if not self._needed(each["name"])}
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
            return  # another peer has deleted it, or has taken it
        except ProviderError as error:
            _log.warning("failed to delete the old Lease %s: %s; retrying in an hour", name, error)
            return
        _log.info("deleted Lease %s: it was not renewed for an hour", name)


def _lasts_seconds(lease: Object) -> float:
    spec: dict[str, Any] = lease.get("spec") or {}
    return float(spec.get("leaseDurationSeconds") or 0)
