"""Retries of writes that conflict."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from kplane.provider.errors import AlreadyExists, Conflict, ProviderError

__all__ = ["retry_on_conflict"]

T = TypeVar("T")

_PAUSE_SECONDS: Final = 0.01


async def retry_on_conflict(attempt: Callable[[], Awaitable[T]], *, attempts: int = 5) -> T:
    """Call `attempt` until it raises no Conflict, at most `attempts` times, then raise the last Conflict.

    Each attempt must read the object again, by the client and not by a cache. The pauses grow from 10 ms. AlreadyExists
    and conflicts of server-side apply are raised at once, because a retry would fail again. client-go's
    `retry.RetryOnConflict`.
    """
    if attempts < 1:
        raise ProviderError(f"{attempts} attempts write nothing: allow at least 1")
    pause = _PAUSE_SECONDS
    for _ in range(attempts - 1):
        try:
            return await attempt()
        except Conflict as error:
            if isinstance(error, AlreadyExists) or _is_of_managers(error):
                raise
        await asyncio.sleep(pause * random.uniform(1.0, 1.5))  # noqa: S311 - spreads load
        pause *= 2
    return await attempt()


def _is_of_managers(error: Conflict) -> bool:
    """Tell whether field managers conflict."""
    causes = error.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, Mapping) and cause.get("reason") == "FieldManagerConflict" for cause in causes
    )
