"""Starts in turns, so that many at once do not take the CPU from instances that run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from kplane.workloads.cpus import usable_cpus

__all__ = ["StartBudget"]

_LANES: Final = 3
"""Of first starts and changes, of the first restart after an instance ended by itself, and of all later restarts."""


class StartBudget:
    """Lets at most `at_once` instances start at the same time.

    Each start waits in one of three lanes, first come, first served, and each lane has every third turn. So
    instances that crash again and again hold back a first start, or a first restart, by two turns at most.

    A start is heavy for its first second or two: the program is loaded and lists everything. A turn ends when its
    instance is ready or has ended, and at the latest after `longest_seconds`, so that a slow API server does not hold
    up the other instances. Two starts are at least `stagger_seconds` apart.
    """

    def __init__(
        self,
        *,
        at_once: int | None = None,
        longest_seconds: float = 3.0,
        stagger_seconds: float = 0.1,
    ) -> None:
        """`at_once` defaults to two for each CPU that this process may use."""
        self._slots = asyncio.Semaphore(at_once if at_once is not None else 2 * usable_cpus())
        self._longest_seconds = longest_seconds
        self._stagger_seconds = stagger_seconds
        self._lanes = tuple(asyncio.Lock() for _ in range(_LANES))
        """Each is held by the first one of it, which waits at the door."""
        self._door = asyncio.Lock()
        """Held by the one that starts next."""
        self._taken: set[asyncio.Task[None]] = set()
        self._not_before = float("-inf")

    @contextlib.asynccontextmanager
    async def turn(self, *, over: asyncio.Event, failures: int = 0) -> AsyncIterator[None]:
        """Start within; return when `over` is set, or at the end of the turn, and not before what is within is done.

        `failures` is how often the instance has ended by itself in a row.
        """
        await self._enter(self._lanes[min(failures, _LANES - 1)])
        try:
            ends_at = asyncio.get_running_loop().time() + self._longest_seconds
            yield
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(ends_at):
                    await over.wait()
        finally:
            self._slots.release()

    async def take(self, *, over: asyncio.Event, failures: int) -> None:
        """Return at the beginning of a turn, which ends as in `turn`."""
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.turn(over=over, failures=failures))
            task = asyncio.create_task(stack.pop_all().aclose(), name="turn to restart an instance")
            self._taken.add(task)
            task.add_done_callback(self._taken.discard)

    async def _enter(self, lane: asyncio.Lock) -> None:
        loop = asyncio.get_running_loop()
        async with lane, self._door:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()))
            await self._slots.acquire()
            self._not_before = loop.time() + self._stagger_seconds
