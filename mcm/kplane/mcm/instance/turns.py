"""Starts in turns, so that many at once do not take the CPU from instances that run."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

from kplane.mcm.instance.pressure import CpuPressure

__all__ = ["StartBudget", "usable_cpus"]

_LOOK_SECONDS: Final = 0.5
"""Between looks at how busy the processors are, while somebody waits for a turn."""


class StartBudget:
    """At most `at_once` instances start at the same time, fewer while processors are busy; first come, first served.

    A start is heavy for its first second or two, in which the program is loaded and lists everything. A turn ends when
    its instance is ready or has ended, and `longest_seconds` after it began: an API server that is slow on purpose
    keeps no other instance from starting, but for the one look at it that a turn may take, which has a deadline. One at
    a time may start however busy the processors are, as nobody knows for how long they will be. Between any two starts
    are `stagger_seconds`.
    """

    def __init__(
        self,
        *,
        at_once: int | None = None,
        longest_seconds: float = 3.0,
        stagger_seconds: float = 0.1,
        pressure: Callable[[], float] | None = None,
    ) -> None:
        """`at_once` is two for each CPU that this process may use where it is not given.

        `pressure` tells how busy they are, from 0 to 1; without it, as Linux does.
        """
        self._at_once = at_once if at_once is not None else 2 * usable_cpus()
        self._longest_seconds = longest_seconds
        self._stagger_seconds = stagger_seconds
        self._pressure = pressure or CpuPressure().look
        self._door = asyncio.Lock()
        self._left = asyncio.Event()
        self._starting = 0
        self._not_before = float("-inf")

    @contextlib.asynccontextmanager
    async def turn(self, *, over: asyncio.Event) -> AsyncIterator[None]:
        """Start within; return when `over` is set, or at the end of the turn, and not before what is within is done."""
        await self._enter()
        try:
            ends_at = asyncio.get_running_loop().time() + self._longest_seconds
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends_at):
                    await over.wait()
        finally:
            self._starting -= 1
            self._left.set()

    async def _enter(self) -> None:
        loop = asyncio.get_running_loop()
        async with self._door:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            while self._starting >= self._allowed():
                self._left.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._left.wait()
            self._starting += 1
            self._not_before = loop.time() + self._stagger_seconds

    def _allowed(self) -> int:
        if self._starting == 0:
            return 1  # whatever the pressure is, which need not be looked at then
        return max(1, round(self._at_once * (1.0 - self._pressure())))


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs that this process may use, at least one: by its affinity, and by the quota of its control group (v2)."""
    count = len(os.sched_getaffinity(0))
    try:
        share, period = quota.read_text().split()
        limit = int(share) // int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        return count
    return max(1, min(count, limit))
