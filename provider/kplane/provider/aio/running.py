"""Restarts coroutines that fail."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import asked_to_end

__all__ = ["keep_running", "kept_running"]

log: Final = logging.getLogger(__name__)

_STEADY_SECONDS: Final = 60.0
"""Run time after which a failure resets the backoff."""


@contextlib.asynccontextmanager
async def kept_running(name: str, run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run `keep_running` inside of this context."""
    task = asyncio.create_task(keep_running(name, run), name=name)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def keep_running(name: str, run: Callable[[], Awaitable[None]]) -> None:
    """Await `run()`, and restart it after failures with a backoff of 1 to 60 s. Returns when it returns."""
    backoff = Backoff(initial_seconds=1.0, maximum_seconds=60.0)
    now = asyncio.get_running_loop().time
    while True:
        began = now()
        try:
            await run()
        except (Exception, asyncio.CancelledError):
            if asked_to_end():
                raise
            if now() - began > _STEADY_SECONDS:
                backoff.reset()
            delay = backoff.next_delay()
            log.exception("%s failed; restarting it in %.1f s", name, delay)
            await asyncio.sleep(delay)
        else:
            log.info("%s has finished", name)
            return
