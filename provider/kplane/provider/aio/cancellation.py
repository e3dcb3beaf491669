"""Tells requested cancellations from those that leak out of awaited code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Any, Final

__all__ = ["asked_to_end", "complete", "end_tasks"]

_log: Final = logging.getLogger(__name__)

_REMIND_SECONDS: Final = 10.0


def asked_to_end() -> bool:
    """Tell whether the current task is being cancelled.

    If it is not, a CancelledError leaked out of awaited code (`task.cancel(); await task` is enough), and is a failure
    like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def complete(works: Iterable[Awaitable[object]]) -> None:
    """Await all at once, each to its end, then raise the first error."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def end_tasks(
    tasks: Iterable[asyncio.Task[Any]],
    *,
    why: str | None = None,
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger] = _log,
) -> None:
    """Cancel tasks and wait until all have ended; log those that have not, and cancel them again, every 10 s."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel(why)
        _, left = await asyncio.wait(left, timeout=_REMIND_SECONDS)
        for task in left:
            logger.warning("task %r is still running; cancelling it again", task.get_name())
