"""Lists everything again from time to time, because a watch may miss what went while it was cut off."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NoReturn

from controlplane_operator.access import Access
from controlplane_operator.backoff import Backoff, jittered
from controlplane_operator.fanout import Stores
from provider import Client, ProviderError, Resource

__all__ = ["Relisting"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 120.0


class Relisting:
    """Fills the stores before anything is reconciled, and compares them with the cluster ever after."""

    def __init__(
        self, client: Client, *, stores: Stores, label_selectors: Mapping[Resource, str], access: Access
    ) -> None:
        self.synced: Final = asyncio.Event()
        self._client = client
        self._stores = stores
        self._label_selectors = label_selectors
        self._access = access
        self._backoff: Backoff[None] = Backoff(first_seconds=0.2)

    async def run(self) -> NoReturn:
        """List until cancelled; `synced` is set once everything was listed."""
        while True:
            try:
                await self._list_all()
            except ProviderError as error:
                pause = self._backoff.next(None)
                _log.warning("cannot list the management cluster, again in %.1f s: %s", pause, error)
            else:
                self._backoff.forget(None)
                self.synced.set()
                pause = jittered(_PERIOD_SECONDS)
            await asyncio.sleep(pause)

    async def _list_all(self) -> None:
        for store in self._stores.watched():
            found = await self._client.list(store.resource, label_selector=self._label_selectors.get(store.resource))
            store.replace(found.items, resource_version=found.resource_version)
        await self._access.load()
        registered = {obj["metadata"]["uid"] for obj in self._stores.registrations}
        for uid in self._access.holders() - registered:
            await self._access.revoke(uid)
