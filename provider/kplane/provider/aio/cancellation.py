"""Cancellations that somebody asked for, told from those that come out of what is awaited."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from typing import Any, Final

__all__ = ["asked_to_end", "complete", "end_tasks"]

_log: Final = logging.getLogger(__name__)

_REMIND_SECONDS: Final = 10.0


def asked_to_end() -> bool:
    """Whether the current task is being cancelled.

    A CancelledError if it is not was let out by somebody's code (`task.cancel(); await task` is enough), and is a
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


async def end_tasks(
    tasks: Iterable[asyncio.Task[Any]],
    *,
    why: str | None = None,
    logger: logging.Logger | logging.LoggerAdapter[logging.Logger] = _log,
) -> None:
    """Cancel tasks and return when all have ended; those that do not are told of and cancelled again, every 10 s."""
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel(why)
        _, left = await asyncio.wait(left, timeout=_REMIND_SECONDS)
        for task in left:
            logger.warning("task %r is still running; cancelling it again", task.get_name())
