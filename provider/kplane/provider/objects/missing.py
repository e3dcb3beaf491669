"""Objects that may not exist."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from kplane.provider.errors import NotFound

__all__ = ["or_none"]

T = TypeVar("T")

_OBJECT: Final = "NotFound"
"""Reason of a Status about a missing object. The answer for a kind that is not served has another reason."""


async def or_none(answer: Awaitable[T]) -> T | None:
    """Await a read or a write, and return its result; None if the object does not exist.

    `await or_none(cluster.cache.get(kind, request))`. Upstream's `client.IgnoreNotFound`. Raises NotFound if the server
    does not serve the kind: callers must not take a missing kind for a deleted object.
    """
    try:
        return await answer
    except NotFound as error:
        if error.reason != _OBJECT:
            raise
        return None
