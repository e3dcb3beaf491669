"""Bounds concurrent tasks, in total and for each key, so that slow tasks do not block others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable
from typing import Final

__all__ = ["Turns"]


class _Party:
    """The tasks of a key."""

    def __init__(self, at_once: int) -> None:
        self.places: Final = asyncio.Semaphore(at_once)
        self.users = 0


class Turns:
    """Admits at most `at_once` tasks in total, and `per_key` tasks of a key; first come, first served.

    A task that takes longer than `patience_seconds` still counts for its key, but not for the total. So a dead server
    blocks only its own tasks. With many dead servers, a task waits at most `patience_seconds` for each `at_once` tasks
    ahead of it.
    """

    def __init__(self, at_once: int, *, per_key: int, patience_seconds: float = 0.25) -> None:
        self._places: Final = asyncio.Semaphore(at_once)
        self._per_key = per_key
        self._patience_seconds = patience_seconds
        self._parties: dict[Hashable, _Party] = {}

    @contextlib.asynccontextmanager
    async def turn(self, key: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and hold it inside of this context."""
        party = self._parties.get(key)
        if party is None:
            party = self._parties[key] = _Party(self._per_key)
        party.users += 1
        try:
            async with party.places, self._place():
                yield
        finally:
            party.users -= 1
            if not party.users:
                del self._parties[key]

    @contextlib.asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        await self._places.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                self._places.release()

        patience = asyncio.get_running_loop().call_later(self._patience_seconds, leave)
        try:
            yield
        finally:
            patience.cancel()
            leave()
