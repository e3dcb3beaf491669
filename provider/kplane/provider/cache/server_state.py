"""State of an API server that all its feeds share."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final

__all__ = ["ServerState"]

_RETRIES_PER_SECOND: Final = 100
_SPREAD_SECONDS: Final = 0.2
_SCOUT_SECONDS: Final = 4.0
_SCOUT_SHARE: Final = 1 / 75
"""Maximum delay until the end of an outage is noticed, as a share of its length: 4 s of 300 s."""


class ServerState:
    """Remembers whether a server can be reached, and whether the server refuses to stream objects.

    A server is unreachable while the last request of each feed failed for a reason that concerns the whole server. The
    first feed that waits for such a server is the scout, and retries every 4 s, or less often in a long outage. When
    the server answers the scout, the waits of the other feeds end.
    """

    __slots__ = ("_answers", "_down_since", "_listeners", "_scouted", "_waiting", "reachable", "refuses_streams")

    def __init__(self) -> None:
        self.reachable = True
        """Whether the server answers a feed. A server without feeds counts as reachable."""
        self.refuses_streams = False
        """Whether the server refused to stream objects, so that no other feed tries."""
        self._answers: dict[object, bool] = {}
        """Whether the server answered the last request of each feed."""
        self._down_since = 0.0
        self._listeners: list[Callable[[], None]] = []
        self._scouted = False
        self._waiting: set[asyncio.Future[float]] = set()

    def observe(self, feed: object, *, answers: bool) -> None:
        """Record the result of the last request of a feed."""
        if self._answers.get(feed) is not answers:
            self._answers[feed] = answers
            self._update()

    def forget(self, feed: object) -> None:
        """Forget a feed that has stopped."""
        if self._answers.pop(feed, None) is not None:
            self._update()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `reachable` changes. Returns a function that ends the calls."""
        # Replace the list, because `_update` may be iterating over it.
        self._listeners = [*self._listeners, listener]

        def unsubscribe() -> None:
            self._listeners = [other for other in self._listeners if other is not listener]

        return unsubscribe

    def answered(self) -> None:
        """Let all feeds in `wait` retry, because the server answered another feed. Spreads many over some seconds."""
        waiting, self._waiting = self._waiting, set()
        spread_seconds = max(_SPREAD_SECONDS, len(waiting) / _RETRIES_PER_SECOND)
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(spread_seconds)

    async def wait(self, seconds: float) -> bool:
        """Wait until the server answers another feed, at most `seconds`. Return whether it has answered.

        The scout of an unreachable server waits no longer than its interval.
        """
        if scouts := not self.reachable and not self._scouted:
            seconds = min(seconds, self._scout_seconds())
            self._scouted = True
        answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.add(answered)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(random.uniform(0, await answered))  # noqa: S311 - spreads load
        except TimeoutError:
            return not answered.cancelled()
        finally:
            self._waiting.discard(answered)
            if scouts:
                self._scouted = False
        return True

    def _scout_seconds(self) -> float:
        down_seconds = asyncio.get_running_loop().time() - self._down_since
        return max(_SCOUT_SECONDS, down_seconds * _SCOUT_SHARE) * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load

    def _update(self) -> None:
        reachable = not self._answers or any(self._answers.values())
        if reachable == self.reachable:
            return
        self.reachable = reachable
        if not reachable:
            self._down_since = asyncio.get_running_loop().time()
        for listener in self._listeners:
            listener()
