"""Counts durations in the buckets of controller-runtime's histograms."""

from __future__ import annotations

import bisect
from typing import Final

__all__ = ["BOUNDS_SECONDS", "Durations"]

BOUNDS_SECONDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5, 1.75,
    2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0,
)  # fmt: skip
"""Upper bounds of the buckets of controller-runtime's histogram controller_runtime_reconcile_time_seconds."""


class Durations:
    """A histogram: `buckets[i]` counts durations from bound i - 1 to `BOUNDS_SECONDS[i]`, the last one longer ones."""

    def __init__(self) -> None:
        self.buckets: Final = [0] * (len(BOUNDS_SECONDS) + 1)
        self.total_seconds = 0.0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.buckets)

    def note(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect.bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.total_seconds += seconds
