"""Delays between retries."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff", "delay_after"]


class Backoff:
    """Grows delays from `initial_seconds` by `factor` up to `maximum_seconds`, less a random part of up to half.

    The jitter keeps tasks that failed together from retrying together. Tests replace `uniform`.
    """

    def __init__(
        self,
        *,
        initial_seconds: float,
        maximum_seconds: float,
        factor: float = 2.0,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._initial = initial_seconds
        self._maximum = maximum_seconds
        self._factor = factor
        self._uniform = uniform
        self._failures = 0

    @property
    def failures(self) -> int:
        """Number of delays since the last reset."""
        return self._failures

    def next_delay(self) -> float:
        """Return the seconds until the next try."""
        delay = delay_after(
            self._failures, initial_seconds=self._initial, maximum_seconds=self._maximum, factor=self._factor
        )
        self._failures += 1
        return delay * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start from the first delay again, after a success."""
        self._failures = 0


def delay_after(failures: int, *, initial_seconds: float, maximum_seconds: float, factor: float = 2.0) -> float:
    """Return the delay in seconds after a number of failures, without jitter."""
    # Bound the exponent: floats would overflow, long after the delay has reached its maximum.
    return min(maximum_seconds, initial_seconds * factor ** min(failures, 100))
