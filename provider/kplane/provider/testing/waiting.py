"""Wait for the effect of a reconciler."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from kplane.provider.errors import ProviderError

__all__ = ["eventually"]

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.01


async def eventually(
    probe: Callable[[], Awaitable[T] | T], accept: Callable[[T], object] = bool, *, timeout_seconds: float = 10.0
) -> T:
    """Call `probe` repeatedly until `accept` is true for its result, and return the result.

    After a ProviderError of the probe, such as NotFound, the wait continues. Raises AssertionError with the last result
    or error at the time-out.
    """
    last: object = "no answer"
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            while True:
                try:
                    returned: Any = probe()
                    result: T = await returned if inspect.isawaitable(returned) else returned
                except ProviderError as error:
                    last = error
                else:
                    if accept(result):
                        return result
                    last = result
                await asyncio.sleep(_PAUSE_SECONDS)
    except TimeoutError:
        if not limit.expired():
            raise
        raise AssertionError(f"not within {timeout_seconds:g} s; the last answer is {last!r}") from None
