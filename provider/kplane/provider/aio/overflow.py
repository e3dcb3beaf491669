"""Lets a reconcile that only waits for somebody's answer do so without keeping a worker from others.

A server that accepts connections and never says a word costs whoever asks it a whole deadline. As many of those as a
controller has workers would stop all that it does (controller-runtime has this trap: MaxConcurrentReconciles). So a
reconcile whose request stays unanswered leaves its worker, which takes the next key. How many may have left at once is
bounded; where that many have, workers wait along with their reconciles.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Final

__all__ = ["PATIENCE_SECONDS", "Place", "Room", "unanswered"]

PATIENCE_SECONDS: Final = 0.25
"""So long an answer is waited for with a worker: well above what a busy API server takes, well below a deadline."""


class Room:
    """How many reconciles of a controller may wait without a worker."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._inside: set[Place] = set()

    def __len__(self) -> int:
        """How many do now."""
        return len(self._inside)

    def admit(self, place: Place) -> bool:
        """Let a reconcile in, where there is room."""
        if len(self._inside) >= self._size:
            return False
        self._inside.add(place)
        return True

    def leave(self, place: Place) -> None:
        """A reconcile has ended."""
        self._inside.discard(place)


class Place:
    """Where a reconcile is worked on: by a worker at first, and without one once it was let go.

    `freed` is called when its worker is free before the reconcile has ended.
    """

    __slots__ = ("_freed", "_room", "left")

    def __init__(self, room: Room, freed: Callable[[], None]) -> None:
        self._room = room
        self._freed = freed
        self.left = False

    def take(self) -> None:
        """Make this the place of all that the current task does from now on."""
        _place.set(self)

    def end(self) -> None:
        """The reconcile has ended."""
        if self.left:
            self._room.leave(self)
        self.left = True

    def let_go(self) -> None:
        """Free the worker, where the room is not full."""
        if not self.left and self._room.admit(self):
            self.left = True
            self._freed()


_place: ContextVar[Place | None] = ContextVar("place of the reconcile under way", default=None)


@contextlib.contextmanager
def unanswered(*, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Wait within for somebody's answer: where it takes longer than `patience_seconds`, the worker is freed.

    Of no effect outside of a reconcile, and where the controller lets none wait without a worker. Where there is no
    room, it is asked for again each `patience_seconds`.
    """
    place = _place.get()
    if place is None:
        yield
        return
    overdue = _Overdue(place, patience_seconds)
    try:
        yield
    finally:
        overdue.cancel()


class _Overdue:
    """Has a reconcile let go when its time is over, and again and again until there is room."""

    def __init__(self, place: Place, patience_seconds: float) -> None:
        self._place = place
        self._patience_seconds = patience_seconds
        self._timer = self._start()

    def cancel(self) -> None:
        """The answer is there, or none is waited for any more."""
        self._timer.cancel()

    def _start(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._patience_seconds, self._over)

    def _over(self) -> None:
        self._place.let_go()
        self._timer = self._start()
