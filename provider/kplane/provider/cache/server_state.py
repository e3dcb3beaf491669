"""What the feeds of one API server learn of it, and share."""

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
"""Share of an outage that may pass until its end is noticed: 4 s of 300 s."""


class ServerState:
    """Remembers whether a server can be reached, and whether it refuses to stream objects.

    A server is unreachable while the last request of each feed failed for a reason that concerns the whole server. One
    of the feeds that wait for such a server is the scout. It retries every 4 s, or less often in a long outage. When
    the server answers it, the waits of the other feeds end.
    """

    __slots__ = ("_answers", "_down_since", "_listeners", "_scouted", "_waiting", "reachable", "refuses_streams")

    def __init__(self) -> None:
        self.reachable = True
        """Whether the server answers a feed. A server without feeds counts as reachable."""
        self.refuses_streams = False
        """Whether it refused to stream objects, so that no other feed asks."""
        self._answers: dict[object, bool] = {}
        """Whether the server answered the last request of each feed."""
        self._down_since = 0.0
        self._listeners: list[Callable[[], None]] = []
        self._scouted = False
        self._waiting: set[asyncio.Future[float]] = set()

    def observe(self, feed: object, *, answers: bool) -> None:
        """Take note of how the last request of a feed ended."""
        if self._answers.get(feed) is not answers:
            self._answers[feed] = answers
            self._update()

    def forget(self, feed: object) -> None:
        """Forget a feed that has ended."""
        if self._answers.pop(feed, None) is not None:
            self._update()

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` whenever `reachable` changes. Returns the function that ends this."""
        # A new list, because a listener may be called now.
        self._listeners = [*self._listeners, listener]

        def unsubscribe() -> None:
            self._listeners = [each for each in self._listeners if each is not listener]

        return unsubscribe

    def answered(self) -> None:
        """Let the feeds in `wait` retry: the server has answered another one. Many are spread over some seconds."""
        waiting, self._waiting = self._waiting, set()
        spread_seconds = max(_SPREAD_SECONDS, len(waiting) / _RETRIES_PER_SECOND)
        for each in waiting:
            if not each.done():
                each.set_result(spread_seconds)

    async def wait(self, seconds: float) -> bool:
        """Wait so long, or until the server answers another feed. Return whether it has.

        The scout of a server that cannot be reached waits no longer than its interval.
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
