"""Kills instances that outlast a Lease that allows them to run, even if mcm itself hangs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Final

from kplane.mcm.instance.lifecycle import Instance
from kplane.provider.errors import ClusterNotOwned
from kplane.workloads import Watchdog

__all__ = ["LeaseEnforcer"]

_LEAD_SECONDS: Final = 0.5
"""Seconds by which an instance is killed before its Lease runs out."""


class LeaseEnforcer:
    """Kills instances that outlast the Lease in their control plane, or the shard Lease of their cluster.

    An mcm that is stopped (SIGSTOP, a debugger, a disk that hangs) cannot end its instances when another program may
    take a Lease over. So a separate process, the watchdog, knows until when each instance may run.
    """

    def __init__(self, directory: Path, *, seconds_left: Callable[[str], float | None] | None = None) -> None:
        """`directory` is the runtime's. `seconds_left` returns how long this mcm owns a cluster (None: for ever).

        It raises ClusterNotOwned for a cluster of another mcm. Without it this mcm is the only one.
        """
        self._seconds_left = seconds_left
        self._watchdog = Watchdog(directory, until=self._until)
        self._instances: Callable[[], Iterable[Instance]] = tuple

    async def admit(self) -> None:
        """Return when the instances that there are by now would be killed in time. Raises RuntimeFailure."""
        await self._watchdog.confirm()

    @contextlib.asynccontextmanager
    async def running(self, instances: Callable[[], Iterable[Instance]], *, stop: asyncio.Event) -> AsyncIterator[None]:
        """Watch them while within, and set `stop` where that is not possible any more: no instance may run then.

        Raises RuntimeFailure at the exit in that case.
        """
        self._instances = instances
        async with self._watchdog.running(on_failure=stop.set):
            yield

    def _until(self) -> dict[str, float]:
        left = {each.component: self._left(each) for each in self._instances()}
        return {component: seconds for component, seconds in left.items() if seconds is not None}

    def _left(self, instance: Instance) -> float | None:
        bounds = [left for left in (instance.seconds_left, self._of_shard(instance.cluster.name)) if left is not None]
        return max(0.0, min(bounds) - _LEAD_SECONDS) if bounds else None

    def _of_shard(self, cluster: str) -> float | None:
        if self._seconds_left is None:
            return None
        try:
            return self._seconds_left(cluster)
        except ClusterNotOwned:
            return 0.0
