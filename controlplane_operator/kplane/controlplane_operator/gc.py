"""Garbage collection of components and grants, by the control planes and registrations that exist.

Components and grants without an owner are collected. Their owner was deleted while no operator ran, or because a user
removed a finalizer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final, NoReturn

from kplane.components.names import components_of, mark_of, mcm_mark
from kplane.controlplane_operator.grants import Access
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcms
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.watch.backoff import jittered, retry_backoff
from kplane.controlplane_operator.watch.cache import Change
from kplane.controlplane_operator.watch.informers import Informers
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, ProviderError
from kplane.workloads import Phase, Runtime, WorkloadsError

__all__ = ["ComponentCollector", "GrantCollector"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 60.0
_SWEEP_SECONDS: Final = 600.0


class ComponentCollector:
    """Stops components without a control plane or registration. Data stay, because no user requested their removal."""

    def __init__(
        self, client: Client, *, runtime: Runtime, mcms: DedicatedMcms, period_seconds: float = _PERIOD_SECONDS
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._mcms = mcms
        self._period_seconds = period_seconds
        self._backoff = retry_backoff()

    async def run(self) -> NoReturn:
        """Collect until cancelled."""
        await self._runtime.synced()
        while True:
            try:
                ended = await self.collect()
            except ProviderError as error:
                pause = self._backoff.next_delay()
                _log.warning("failed to collect components without an owner: %s; retry in %.1f s", error, pause)
            else:
                if ended:
                    self._backoff.reset()
                # A registration may wait for the end of the mcm of a former registration, so retry with a shorter
                # pause.
                pause = jittered(self._period_seconds) if ended else self._backoff.next_delay()
            await asyncio.sleep(pause)

    async def collect(self) -> bool:
        """Stop each component without an owner in the API server; return whether the mcms among them have ended.

        Raises ProviderError.
        """
        names = self._runtime.names()
        ended = await self._collect_mcms([name for name in names if mark_of(name) is not None])
        running = [
            name for name in names if mark_of(name) is None and self._runtime.state(name).phase is not Phase.ABSENT
        ]
        owned = await self._owned() if running else set()
        for component in running:
            # List again for each component: each stop takes time, and the control plane may have been created
            # meanwhile.
            if component in owned or component in await self._owned():
                continue
            try:
                await self._runtime.stop(component)
            except WorkloadsError as error:
                _log.warning("%s, whose control plane is gone, has not ended yet: %s", component, error)
            else:
                _log.warning("ended %s: its control plane is gone; its data stay", component)
        return ended

    async def _collect_mcms(self, present: Sequence[str]) -> bool:
        ended, registered = True, await self._registered() if present else set()
        for component in present:
            if mark_of(component) in registered or mark_of(component) in await self._registered():
                continue
            try:
                await self._mcms.end(component)
            except WorkloadsError as error:
                _log.warning("%s, whose registration is gone, has not ended yet: %s", component, error)
                ended = False
            else:
                _log.warning("ended %s: its registration is gone", component)
        return ended

    async def _registered(self) -> set[str]:
        """Return the marks of all registrations in the API server, which are derived from their uids."""
        registrations = await self._client.list(CONTROL_PLANE_REGISTRATIONS)
        return {mcm_mark(registration["metadata"]["uid"]) for registration in registrations.items}

    async def _owned(self) -> set[str]:
        """Return the names of the components of all control planes in the API server."""
        names = [control_plane["metadata"]["name"] for control_plane in (await self._client.list(CONTROL_PLANES)).items]
        return {component for name in names for component in components_of(name)}


class GrantCollector:
    """Revokes grants without a registration: when a registration is deleted, and every ten minutes."""

    def __init__(self, informers: Informers, *, stores: Stores, access: Access, identities: McmIdentities) -> None:
        self.synced: Final = asyncio.Event()
        self._informers = informers
        self._stores = stores
        self._access = access
        self._identities = identities
        self._backoff = retry_backoff(first_seconds=0.2)
        self._deleted = asyncio.Event()

    async def run(self) -> NoReturn:
        """Compare until cancelled; sets `synced` after the first comparison, which follows a new list of all kinds."""
        await self._informers.refresh()
        self._stores.registrations.listen(self._changed)
        while True:
            try:
                await self._sweep()
            except ProviderError as error:
                pause = self._backoff.next_delay()
                _log.warning("failed to compare grants with registrations: %s; retry in %.1f s", error, pause)
                await asyncio.sleep(pause)
            else:
                self._backoff.reset()
                self.synced.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(jittered(_SWEEP_SECONDS)):
                        await self._deleted.wait()

    def _changed(self, change: Change) -> None:
        # A deletion that the reconciler has seen leaves no grants. It may not have: users can remove the finalizer.
        if change.new is None:
            self._deleted.set()

    async def _sweep(self) -> None:
        self._deleted.clear()
        for grants in (self._access, self._identities):
            holders = await grants.holders()
            for uid in holders - {obj["metadata"]["uid"] for obj in self._stores.registrations}:
                await grants.revoke(uid)
