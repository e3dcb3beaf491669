"""When the time of any of many is up: they all get the same, so that one timer does for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Calls `over` with each that began `seconds` ago and did not end. To begin and to end cost next to nothing."""

    def __init__(self, seconds: float, over: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._over = over
        # In the order of their ends, because each gets the same time.
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, item: T) -> None:
        """Let the time of an item run from now."""
        loop = asyncio.get_running_loop()
        due = self._due[item] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._look)

    def end(self, item: T) -> None:
        """Its time does not matter any more; no error where it is up or never began."""
        self._due.pop(item, None)

    def close(self) -> None:
        """End all."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # Event loops round to a millisecond: a timer that is that much too early is not set once more.
        now = loop.time() + 0.001
        up = []
        for item, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._look)
                break
            up.append(item)
        for item in up:
            del self._due[item]
        for item in up:
            self._over(item)
