"""Takes back the grants of registrations that went while nobody looked."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn

from kplane.controlplane_operator.registrations.grants import Access
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.watch.backoff import Backoff
from kplane.controlplane_operator.watch.event_routing import Stores
from kplane.controlplane_operator.watch.resync import Resync
from kplane.provider import ProviderError

__all__ = ["GrantCollector"]

_log: Final = logging.getLogger(__name__)


class GrantCollector:
    """Compares the grants that exist with the registrations, each time when these were listed."""

    def __init__(self, resync: Resync, *, stores: Stores, access: Access, identities: McmIdentities) -> None:
        self.synced: Final = asyncio.Event()
        self._resync = resync
        self._stores = stores
        self._access = access
        self._identities = identities
        self._backoff: Backoff[None] = Backoff(first_seconds=0.2)

    async def run(self) -> NoReturn:
        """Sweep until cancelled; `synced` is set once everything was listed, and all grants are known."""
        await self._resync.anew()
        while True:
            try:
                await self._sweep()
            except ProviderError as error:
                pause = self._backoff.next(None)
                _log.warning("cannot compare grants with registrations, again in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
            else:
                self._backoff.forget(None)
                self.synced.set()
                await self._resync.next()

    async def _sweep(self) -> None:
        await self._access.load()
        await self._identities.load()
        registered = {obj["metadata"]["uid"] for obj in self._stores.registrations}
        for uid in self._access.holders() - registered:
            await self._access.revoke(uid)
        for uid in self._identities.holders() - registered:
            await self._identities.revoke(uid)
