"""How long to wait before the next try, per object."""

from __future__ import annotations

import random
from typing import Generic, TypeVar

__all__ = ["Backoff", "jittered"]

K = TypeVar("K")


def jittered(seconds: float, *, share: float = 0.2) -> float:
    """Return a time that differs from the given one by up to `share` of it, so that objects do not move in step."""
    return seconds * random.uniform(1 - share, 1 + share)  # noqa: S311 - spreads load, guards nothing


class Backoff(Generic[K]):
    """Delays that double with each failure of a key, from `first_seconds` to `limit_seconds`, with jitter.

    What fails for another reason than before starts anew.
    """

    def __init__(self, *, first_seconds: float = 0.5, limit_seconds: float = 30.0) -> None:
        self._first = first_seconds
        self._limit = limit_seconds
        self._failures: dict[K, tuple[str, int]] = {}

    def next(self, key: K, *, reason: str = "") -> float:
        """Count a failure of the key and return the seconds to wait."""
        former, count = self._failures.get(key, (reason, 0))
        failures = count if former == reason else 0
        self._failures[key] = reason, failures + 1
        return jittered(min(self._limit, self._first * 2.0 ** min(failures, 16)))

    def forget(self, key: K) -> None:
        """The key succeeded, or is gone: it starts anew."""
        self._failures.pop(key, None)
