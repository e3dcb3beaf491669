"""How long to wait before the next try."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff", "delay_after"]


class Backoff:
    """Delays that grow from `initial_seconds` by `factor` to `maximum_seconds`, each shortened at random by up to half.

    The jitter keeps many that failed together from trying again together. `uniform` is replaced in tests.
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
        """Tries since the last reset."""
        return self._failures

    def next_delay(self) -> float:
        """Seconds to wait before the next try."""
        delay = delay_after(
            self._failures, initial_seconds=self._initial, maximum_seconds=self._maximum, factor=self._factor
        )
        self._failures += 1
        return delay * self._uniform(0.5, 1.0)

    def reset(self) -> None:
        """Begin from the start again: the last try worked."""
        self._failures = 0


def delay_after(failures: int, *, initial_seconds: float, maximum_seconds: float, factor: float = 2.0) -> float:
    """Seconds to wait after so many failures before, without jitter."""
    # The exponent is bounded because floats overflow, long after the maximum is reached.
    return min(maximum_seconds, initial_seconds * factor ** min(failures, 100))
