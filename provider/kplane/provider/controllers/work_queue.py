"""A queue of keys to work on: each at most once at a time, none lost, failed ones later and later."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from kplane.provider.aio.backoff import Backoff
from kplane.provider.errors import QueueClosed

__all__ = ["WorkQueue"]

K = TypeVar("K", bound=Hashable)


class WorkQueue(Generic[K]):
    """client-go's work queue for one event loop.

    A key that is added while it waits is not added twice; one that is added while somebody works on it is given once
    more after `done`. So its size is bounded by the number of distinct keys. `retry` delays grow per key from
    `initial_backoff_seconds` to `maximum_backoff_seconds`, with jitter, until `forget`.
    """

    def __init__(self, *, initial_backoff_seconds: float = 0.005, maximum_backoff_seconds: float = 60.0) -> None:
        self._initial_backoff_seconds = initial_backoff_seconds
        self._maximum_backoff_seconds = maximum_backoff_seconds
        self._waiting: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._delayed: dict[K, asyncio.TimerHandle] = {}
        self._backoffs: dict[K, Backoff] = {}
        self._getters: deque[asyncio.Future[None]] = deque()
        self._notify: Callable[[], None] | None = None
        self._closed = False

    def __len__(self) -> int:
        """Number of keys that wait to be worked on now."""
        return len(self._waiting)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def idle(self) -> bool:
        """Whether nothing waits, is delayed, or is worked on."""
        return not (self._dirty or self._processing or self._delayed)

    def add(self, key: K) -> None:
        """Ask for work on the key as soon as somebody is free."""
        if self._closed or key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._processing:
            self._enqueue(key)

    def add_after(self, key: K, seconds: float) -> None:
        """Add the key in `seconds`; of several delays for a key the earliest counts."""
        if self._closed:
            return
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        pending = self._delayed.get(key)
        if pending is not None:
            if pending.when() <= loop.time() + seconds:
                return
            pending.cancel()
        self._delayed[key] = loop.call_later(seconds, self._due, key)

    async def get(self) -> K:
        """Wait for a key and take it; `done(key)` must follow. Raises QueueClosed when closed and drained."""
        while not self._waiting:
            if self._closed:
                raise QueueClosed("the queue is closed")
            getter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._getters.append(getter)
            try:
                await getter
            except asyncio.CancelledError:
                # Woken and cancelled at once: what there is to get is somebody else's.
                if not getter.cancel():
                    self._wake()
                raise
        return self._pop()

    def take(self) -> K | None:
        """Take a key as `get` does, or None where none waits now."""
        return self._pop() if self._waiting else None

    def on_ready(self, notify: Callable[[], None] | None) -> None:
        """Have `notify` called whenever there is a key to take, and when the queue is closed."""
        self._notify = notify

    def done(self, key: K) -> None:
        """Say that the work on a key that `get` gave has ended, well or not."""
        self._processing.discard(key)
        if key in self._dirty:
            self._enqueue(key)

    def requeue(self, key: K, seconds: float) -> None:
        """As `add_after`, by whoever works on the key."""
        self.add_after(key, seconds)

    def retry(self, key: K) -> float:
        """Add the key again after its growing backoff; returns the delay in seconds."""
        backoff = self._backoffs.get(key)
        if backoff is None:
            backoff = self._backoffs[key] = Backoff(
                initial_seconds=self._initial_backoff_seconds, maximum_seconds=self._maximum_backoff_seconds
            )
        delay = backoff.next_delay()
        self.add_after(key, delay)
        return delay

    def failures(self, key: K) -> int:
        """How often the key was retried since it was last forgotten."""
        backoff = self._backoffs.get(key)
        return backoff.failures if backoff is not None else 0

    def forget(self, key: K) -> None:
        """Let the key's next retry begin with the shortest delay again."""
        self._backoffs.pop(key, None)

    def close(self) -> None:
        """Take no more keys: what waits is still given, what is delayed is dropped, then `get` raises QueueClosed."""
        if self._closed:
            return
        self._closed = True
        for timer in self._delayed.values():
            timer.cancel()
        self._delayed.clear()
        while self._getters:
            self._wake()
        if self._notify is not None:
            self._notify()

    def _due(self, key: K) -> None:
        del self._delayed[key]
        self.add(key)

    def _enqueue(self, key: K) -> None:
        self._waiting.append(key)
        self._wake()
        if self._notify is not None:
            self._notify()

    def _pop(self) -> K:
        key = self._waiting.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def _wake(self) -> None:
        while self._getters:
            getter = self._getters.popleft()
            if not getter.done():
                getter.set_result(None)
                return
