"""Ends what runs for control planes that are gone without us: by a finalizer that somebody removed."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn

from controlplane_operator.backoff import Backoff, jittered
from controlplane_operator.components import apiserver_name, etcd_name
from controlplane_operator.kinds import CONTROL_PLANES
from provider import Client, ProviderError
from workloads import Phase, Runtime, WorkloadsError

__all__ = ["Orphans"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 60.0


class Orphans:
    """Collects components that no control plane has. Data stay: nobody said that they may go."""

    def __init__(self, client: Client, *, runtime: Runtime, period_seconds: float = _PERIOD_SECONDS) -> None:
        self._client = client
        self._runtime = runtime
        self._period_seconds = period_seconds
        self._backoff: Backoff[None] = Backoff()

    async def run(self) -> NoReturn:
        """Collect until cancelled."""
        await self._runtime.synced()
        while True:
            try:
                await self.collect()
            except ProviderError as error:
                pause = self._backoff.next(None)
                _log.warning("orphans cannot be collected, again in %.1f s: %s", pause, error)
            else:
                self._backoff.forget(None)
                pause = jittered(self._period_seconds)
            await asyncio.sleep(pause)

    async def collect(self) -> None:
        """End every component of which the API server knows no control plane. Raises ProviderError."""
        running = [name for name in self._runtime.names() if self._runtime.state(name).phase is not Phase.ABSENT]
        owned = await self._owned() if running else set()
        for component in running:
            # Anew for each: to end others took its time, and a control plane may have come meanwhile.
            if component in owned or component in await self._owned():
                continue
            try:
                await self._runtime.stop(component)
            except WorkloadsError as error:
                _log.warning("%s, whose control plane is gone, has not ended yet: %s", component, error)
            else:
                _log.warning("ended %s: its control plane is gone; its data stay", component)

    async def _owned(self) -> set[str]:
        """Return the components of all control planes that the API server has."""
        names = [found["metadata"]["name"] for found in (await self._client.list(CONTROL_PLANES)).items]
        return {component for name in names for component in (apiserver_name(name), etcd_name(name))}
