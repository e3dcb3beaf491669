"""Starts in turns, so that many at once do not take the CPU from instances that run."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

__all__ = ["StartBudget", "usable_cpus"]


class StartBudget:
    """At most `at_once` instances start at the same time; the others wait, first come, first served.

    A start is heavy for its first second or two, in which the program is loaded and lists everything. A turn ends when
    its instance is ready or has ended, and after `longest_seconds` in any case: an API server that is slow on purpose
    keeps no other instance from starting.
    """

    def __init__(self, *, at_once: int | None = None, longest_seconds: float = 3.0) -> None:
        """`at_once` is two for each CPU that this process may use where it is not given."""
        self._slots = asyncio.Semaphore(at_once if at_once is not None else 2 * usable_cpus())
        self._longest_seconds = longest_seconds

    @contextlib.asynccontextmanager
    async def turn(self, *, over: asyncio.Event) -> AsyncIterator[None]:
        """Start within; return when `over` is set, or the time of the turn is."""
        async with self._slots:
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._longest_seconds):
                    await over.wait()


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs that this process may use, at least one: by its affinity, and by the quota of its control group (v2)."""
    count = len(os.sched_getaffinity(0))
    try:
        share, period = quota.read_text().split()
        limit = int(share) // int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        return count
    return max(1, min(count, limit))
