"""Enforcer of Leases: kills instances whose permit expires, even if mcm itself hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Final

from kplane.mcm.instance.lifecycle import Instance
from kplane.workloads import Watchdog

__all__ = ["LeaseEnforcer"]

_LEAD_SECONDS: Final = 0.5
"""Time in seconds from the kill of an instance to the expiry of its permit."""


class LeaseEnforcer:
    """Kills instances at the expiry of the Lease in their control plane, or of the shard Lease of their cluster.

    A stopped mcm (SIGSTOP, a debugger, a disk that hangs) cannot stop its instances before another program takes over
    a Lease. So a separate process, the watchdog, knows the deadline of each instance.
    """

    def __init__(self, directory: Path) -> None:
        """`directory` is the directory of the runtime."""
        self._watchdog = Watchdog(directory, until=self._until)
        self._instances: Callable[[], Iterable[Instance]] = tuple

    async def acquire(self) -> None:
        """Wait until the watchdog knows the deadlines of all present instances. Raises RuntimeFailure."""
        await self._watchdog.confirm()

    @contextlib.asynccontextmanager
    async def running(self, instances: Callable[[], Iterable[Instance]], *, stop: asyncio.Event) -> AsyncIterator[None]:
        """Enforce Leases inside the block. Set `stop` if the watchdog fails, because no instance may run without it.

        Raises RuntimeFailure at the exit in that case.
        """
        self._instances = instances
        async with self._watchdog.running(on_failure=stop.set):
            yield

    def _until(self) -> dict[str, float]:
        left = {instance.component: instance.permit.seconds_left for instance in self._instances()}
        return {
            component: max(0.0, seconds - _LEAD_SECONDS) for component, seconds in left.items() if seconds is not None
        }
