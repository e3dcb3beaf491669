"""The lane of a cluster in a work queue."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

__all__ = ["Delay", "Lane", "Taken"]

R = TypeVar("R", bound=Hashable)

_PASSED_OVER: Final = 16
"""Number of requests of normal priority after which a request of low priority has its turn."""


class Taken(NamedTuple):
    """The generation of the lane, and the priority, of a request that a worker processes."""

    generation: int
    low_priority: bool


class Delay(NamedTuple):
    """Due time, on the clock of the event loop, and priority of a delayed request."""

    due: float
    low_priority: bool


class Lane(Generic[R]):
    """The requests of a cluster. The lane is in the ring of the queue while workers may take its requests."""

    __slots__ = (
        "deficit", "delayed", "dirty", "generation", "heap", "in_ring", "kept", "low", "name", "parked", "passed_over",
        "processing", "release", "suspended", "timer", "timer_due", "unreached", "waiting", "warned_full", "weight",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name: Final = name
        self.waiting: deque[R] = deque()
        self.low: OrderedDict[R, None] | None = None
        """Waiting requests of low priority; None if there are none, as is most often the case."""
        self.passed_over = 0
        # Requests to process, mapped to whether their priority is low.
        self.dirty: dict[R, bool] = {}
        # Requests that workers process. A requeue or retry of an older generation comes after `drop`, and is ignored.
        self.processing: dict[R, Taken] = {}
        self.delayed: dict[R, Delay] = {}
        self.heap: list[tuple[float, int, R]] = []
        self.timer: asyncio.TimerHandle | None = None
        self.timer_due = 0.0
        self.generation = 0
        self.kept = False
        self.parked = False
        self.suspended = False
        self.unreached: set[R] = set()
        """Requests whose last attempt failed because an API server could not be reached."""
        self.release: asyncio.TimerHandle | None = None
        self.warned_full = False
        self.in_ring = False
        self.deficit = 0.0
        self.weight = 1.0

    @property
    def depth(self) -> int:
        """Number of waiting requests."""
        return len(self.waiting) + (0 if self.low is None else len(self.low))

    def append(self, request: R, *, low_priority: bool) -> None:
        """Append a request that does not wait yet."""
        if not low_priority:
            self.waiting.append(request)
        elif self.low is None:
            self.low = OrderedDict.fromkeys([request])
        else:
            self.low[request] = None

    def prefer(self, request: R) -> None:
        """Raise a waiting request of low priority to normal priority."""
        if self.low is not None and request in self.low:
            del self.low[request]
            self.waiting.append(request)

    def pop(self) -> R:
        """Remove and return the next request."""
        if not self.low:
            return self.waiting.popleft()
        if self.waiting and self.passed_over < _PASSED_OVER:
            self.passed_over += 1
            return self.waiting.popleft()
        self.passed_over = 0
        request, _ = self.low.popitem(last=False)
        if not self.low:
            self.low = None
        return request

    def drop(self) -> int:
        """Drop all requests that no worker processes, in constant time; return their number."""
        dropped = self.depth + len(self.delayed)
        self.waiting, self.low, self.dirty, self.delayed, self.heap = deque(), None, {}, {}, []
        self.generation += 1
        self.kept = self.parked = self.suspended = False
        self.unreached = set()
        self.stop_timer()
        self.stop_release()
        return dropped

    def stop_release(self) -> None:
        """Cancel the pending end of the suspension."""
        if self.release is not None:
            self.release.cancel()
            self.release = None

    def stop_timer(self) -> None:
        """Cancel the timer of the next delay."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
