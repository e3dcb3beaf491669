"""Lets a reconcile wait for an answer without keeping a worker from other keys.

A server that accepts connections but never answers blocks each caller until the deadline. If such servers were as many
as the workers of a controller, they would stop the controller (MaxConcurrentReconciles of controller-runtime). So a
reconcile whose request stays unanswered leaves its worker, and the worker takes the next key. `OverflowSlots` bound the
number of such reconciles. If all slots are taken, workers wait with their reconciles.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

__all__ = ["PATIENCE_SECONDS", "OverflowSlots", "WorkerSlot", "unanswered"]

PATIENCE_SECONDS: Final = 0.25
"""Time until a waiting reconcile leaves its worker: longer than a busy API server takes, much less than a deadline."""


class OverflowSlots:
    """Counts the reconciles of a controller that wait without a worker, at most `size`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken: set[WorkerSlot] = set()

    def __len__(self) -> int:
        """Return the number of taken slots."""
        return len(self._taken)

    def admit(self, slot: WorkerSlot) -> bool:
        """Take a slot for a reconcile. Return False if all slots are taken."""
        if len(self._taken) >= self._size:
            return False
        self._taken.add(slot)
        return True

    def release(self, slot: WorkerSlot) -> None:
        """Free the slot of a reconcile that has ended."""
        self._taken.discard(slot)


class WorkerSlot:
    """Holds a worker for one reconcile until it ends, or until `let_go` moves the reconcile to an overflow slot.

    `freed` is called if the worker becomes free before the reconcile has ended.
    """

    __slots__ = ("_freed", "_overflow", "left")

    def __init__(self, overflow: OverflowSlots, freed: Callable[[], None]) -> None:
        self._overflow = overflow
        self._freed = freed
        self.left = False

    def take(self) -> None:
        """Make this the slot of the current task, and of tasks that it starts from now on."""
        _slot.set(self)

    def end(self) -> None:
        """Release the overflow slot, if any, after the end of the reconcile."""
        if self.left:
            self._overflow.release(self)
        self.left = True

    def let_go(self) -> None:
        """Free the worker if there is an overflow slot."""
        if not self.left and self._overflow.admit(self):
            self.left = True
            self._freed()


_slot: ContextVar[WorkerSlot | None] = ContextVar("worker slot of the current reconcile", default=None)


@contextlib.contextmanager
def unanswered(*, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Free the worker of the current reconcile if this context is open for longer than `patience_seconds`.

    Has no effect outside of a reconcile, or if the controller has no overflow slots. If all slots are taken, the
    context retries every `patience_seconds`.
    """
    slot = _slot.get()
    if slot is None:
        yield
        return
    overdue = _Overdue(slot, patience_seconds)
    try:
        yield
    finally:
        overdue.cancel()


class _Overdue:
    """Calls `let_go` every `patience_seconds`, until the reconcile has an overflow slot."""

    def __init__(self, slot: WorkerSlot, patience_seconds: float) -> None:
        self._slot = slot
        self._patience_seconds = patience_seconds
        self._timer = self._start()

    def cancel(self) -> None:
        """Stop the timer after the answer or the end of the wait."""
        self._timer.cancel()

    def _start(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._patience_seconds, self._over)

    def _over(self) -> None:
        self._slot.let_go()
        self._timer = self._start()
