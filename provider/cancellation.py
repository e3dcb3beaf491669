"""Cancellations that somebody asked for, told from those that come out of what is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

__all__ = ["asked_to_end", "complete"]


def asked_to_end() -> bool:
    """Whether the current task is being cancelled.

    A CancelledError where it is not was let out by somebody's code (`task.cancel(); await task` is enough), and is a
    failure like any other: taken for a wish to end, it would end what has to go on.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def complete(works: Iterable[Awaitable[object]]) -> None:
    """Await all at once, each to its end whatever happens to the others; then raise the first error of any."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
