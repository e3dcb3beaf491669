"""Start budget: limits concurrent starts, so that many starts do not take the CPU from running instances."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from kplane.workloads.cpus import usable_cpus

__all__ = ["StartBudget", "Turn"]

_LANES: Final = 3
"""Number of lanes: first starts and changes; first restarts after an end by itself; all later restarts."""


class StartBudget:
    """Limits concurrent starts of instances to `at_once`.

    A start waits in one of three lanes. Each lane is first come, first served, and each lane has every third turn. So
    instances that crash again and again delay a first start, or a first restart, by at most two turns.

    A start is heavy for a second or two, because the program is loaded and lists all objects. A turn ends when its
    instance is ready or has ended, and at the latest after `longest_seconds`. So a slow API server does not delay other
    instances. Two starts are at least `stagger_seconds` apart.
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
        """Lock of each lane. The first waiter of a lane holds it while it waits at the door."""
        self._door = asyncio.Lock()
        """Lock of the waiter that starts next."""
        self._taken: set[asyncio.Task[None]] = set()
        self._not_before = float("-inf")

    @contextlib.asynccontextmanager
    async def turn(self, *, over: asyncio.Event, failures: int = 0) -> AsyncIterator[None]:
        """Wait for a turn and run the block; then keep the turn until `over` is set, or the turn times out.

        `failures` is the number of times in a row that the process ended by itself.
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
        """Wait for a turn and return at its beginning. The turn ends in the background, as in `turn`."""
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


class Turn:
    """Turn of one instance in a `StartBudget`: for a start, a change or a kill, and for the restart after it."""

    def __init__(self, budget: StartBudget) -> None:
        self._budget = budget
        self._over = asyncio.Event()
        """Set when the start in the present turn is over."""
        self._held = False

    @contextlib.asynccontextmanager
    async def acquired(self) -> AsyncIterator[None]:
        """Wait for a turn, and start or hold the instance within. Return when the start or the turn is over."""
        try:
            async with self._budget.turn(over=self._over):
                self._over.clear()
                self._held = True
                yield
        finally:
            self._held = False

    async def acquire_restart(self, failures: int) -> None:
        """Return in a turn for the restart of a process that ended by itself.

        `failures` is the number of such ends in a row. If mcm killed a hung process in a turn, the restart uses the
        same turn.
        """
        if self._over.is_set() or not self._held:
            await self._budget.take(over=self._over, failures=failures)
            self._over.clear()

    def release(self) -> None:
        """End the turn, because the start in it is over."""
        self._over.set()
