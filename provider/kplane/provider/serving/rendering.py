"""Renders metrics once for all who ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

__all__ = ["Rendering"]


class Rendering:
    """Calls `render` for one after the other; those who ask while it works share what it gives the next time.

    So however many ask, and do not wait for the answer, the next one waits for two renderings at most; and nobody gets
    a text that was begun before it was asked for. Nothing is kept for those who ask later. Where `render` fails, one
    of those who share it has the error, and the next of them tries again.
    """

    def __init__(self, render: Callable[[], Awaitable[bytes]]) -> None:
        self._render: Final = render
        self._busy = asyncio.Lock()
        self._next = _Shared()

    async def text(self) -> bytes:
        """Return what `render` gives; raises what it raises."""
        shared = self._next
        async with self._busy:
            if shared.text is None:
                self._next = _Shared()  # for those who ask from now on
                shared.text = await self._render()
            return shared.text


class _Shared:
    """What those have in common who asked while another one was served."""

    __slots__ = ("text",)

    def __init__(self) -> None:
        self.text: bytes | None = None
