"""Distinguishes requested cancellations from CancelledErrors that leak out of awaited code."""

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

    Otherwise a CancelledError has leaked out of awaited code, for example by `task.cancel(); await task`, and counts as
    a failure.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def complete(works: Iterable[Awaitable[object]]) -> None:
    """Await all works concurrently until each has ended, then raise the first error."""
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
    """Cancel tasks and wait until all have ended. Log and cancel the remaining tasks again every 10 s."""
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel(why)
        _, running = await asyncio.wait(running, timeout=_REMIND_SECONDS)
        for task in running:
            logger.warning("task %r is still running; cancelling it again", task.get_name())
