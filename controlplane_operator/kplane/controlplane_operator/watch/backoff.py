"""Delays before retries, by object."""

from __future__ import annotations

import random
from typing import Final, Generic, TypeVar

from kplane.provider.aio.backoff import Backoff

__all__ = ["KeyedBackoff", "jittered", "retry_backoff"]

K = TypeVar("K")

_LIMIT_SECONDS: Final = 30.0


def jittered(seconds: float, *, share: float = 0.2) -> float:
    """Return a time that differs from `seconds` by up to `share`, so that objects do not act in step."""
    return seconds * random.uniform(1 - share, 1 + share)  # noqa: S311 - spreads load, guards nothing


def retry_backoff(*, first_seconds: float = 0.5, limit_seconds: float = _LIMIT_SECONDS) -> Backoff:
    """Return a backoff that doubles from `first_seconds` to `limit_seconds`."""
    return Backoff(initial_seconds=first_seconds, maximum_seconds=limit_seconds)


class KeyedBackoff(Generic[K]):
    """Counts the failures of each key separately. A failure for a new reason resets the count of its key."""

    def __init__(self, *, first_seconds: float = 0.5, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._first_seconds = first_seconds
        self._limit_seconds = limit_seconds
        self._failures: dict[K, tuple[str, Backoff]] = {}

    def next(self, key: K, *, reason: str = "") -> float:
        """Count a failure of the key, and return the seconds to wait."""
        last_reason, backoff = self._failures.get(key, (None, None))
        if backoff is None or last_reason != reason:
            backoff = retry_backoff(first_seconds=self._first_seconds, limit_seconds=self._limit_seconds)
            self._failures[key] = reason, backoff
        return backoff.next_delay()

    def forget(self, key: K) -> None:
        """Reset the count of a key that succeeded or is gone."""
        self._failures.pop(key, None)
