"""What the feeds of one API server learn of it, and share."""

from __future__ import annotations

import asyncio
import random
from typing import Final

__all__ = ["ServerState"]

_RETRIES_PER_SECOND: Final = 100
_SPREAD_SECONDS: Final = 0.2


class ServerState:
    """Remembers whether a server refuses to stream objects, and ends the waits for it when it answers again."""

    __slots__ = ("_waiting", "refuses_streams")

    def __init__(self) -> None:
        self.refuses_streams = False
        """Whether it refused to stream objects, so that no other feed asks."""
        self._waiting: set[asyncio.Future[float]] = set()

    def answered(self) -> None:
        """Let the feeds in `wait` retry: the server has answered another one. Many are spread over some seconds."""
        waiting, self._waiting = self._waiting, set()
        spread_seconds = max(_SPREAD_SECONDS, len(waiting) / _RETRIES_PER_SECOND)
        for each in waiting:
            if not each.done():
                each.set_result(spread_seconds)

    async def wait(self, seconds: float) -> bool:
        """Wait so long, or until the server answers another feed. Return whether it has."""
        answered: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._waiting.add(answered)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.sleep(random.uniform(0, await answered))  # noqa: S311 - spreads load
        except TimeoutError:
            return not answered.cancelled()
        finally:
            self._waiting.discard(answered)
        return True
