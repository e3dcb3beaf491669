"""For how long instances may run: as long as mcm holds the Lease of their cluster, whatever becomes of mcm."""

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
"""So long before an mcm that can do so ends itself because of an instance that goes on, that instance is killed."""


class LeaseEnforcer:
    """Has instances killed that outlast the fence of their cluster.

    An mcm that is stopped (SIGSTOP, a debugger, a disk that hangs) withdraws nothing when others take its clusters
    over, and its instances would work on: so a process of its own knows until when each of them may.
    """

    def __init__(self, directory: Path, *, seconds_left: Callable[[str], float | None] | None) -> None:
        """`directory` is that of the runtime. `seconds_left` tells for how long a cluster may be worked on (None: for
        ever), or raises ClusterNotOwned; there is none where nobody else works on any.
        """
        self._seconds_left = seconds_left
        self._watchdog = Watchdog(directory, until=self._until) if seconds_left is not None else None
        self._instances: Callable[[], Iterable[Instance]] = tuple

    async def admit(self) -> None:
        """Return when the instances that there are by now would be killed in time. Raises RuntimeFailure."""
        if self._watchdog is not None:
            await self._watchdog.confirm()

    @contextlib.asynccontextmanager
    async def running(self, instances: Callable[[], Iterable[Instance]], *, stop: asyncio.Event) -> AsyncIterator[None]:
        """Watch them while within, and set `stop` where that is not possible any more: no instance may run then.

        Raises RuntimeFailure at the exit in that case.
        """
        self._instances = instances
        if self._watchdog is None:
            yield
            return
        async with self._watchdog.running(on_failure=stop.set):
            yield

    def _until(self) -> dict[str, float]:
        left = {each.component: self._left(each.cluster.name) for each in self._instances()}
        return {component: seconds for component, seconds in left.items() if seconds is not None}

    def _left(self, cluster: str) -> float | None:
        if self._seconds_left is None:
            return None
        try:
            seconds = self._seconds_left(cluster)
        except ClusterNotOwned:
            return 0.0
        return seconds - _LEAD_SECONDS if seconds is not None else None
