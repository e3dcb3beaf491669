"""Waits for what a reconciler does sooner or later."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kplane.provider.errors import ProviderError

__all__ = ["eventually"]

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.01


async def eventually(
    probe: Callable[[], Awaitable[T] | T], accept: Callable[[T], object] = bool, *, timeout_seconds: float = 10.0
) -> T:
    """Call `probe` again and again until `accept` is true of what it returns, and return that.

    A ProviderError of the probe, such as NotFound, is no answer yet. Raises AssertionError with the last answer when
    the time is over.
    """
    last: object = "no answer"
    try:
        async with asyncio.timeout(timeout_seconds) as limit:
            while True:
                try:
                    asked = probe()
                    found = await asked if inspect.isawaitable(asked) else asked
                except ProviderError as error:
                    last = error
                else:
                    if accept(found):
                        return found
                    last = found
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"not within {timeout_seconds:g} s; the last answer is {last!r}") from None
