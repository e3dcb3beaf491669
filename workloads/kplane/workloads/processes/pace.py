"""How often things happen: restarts, probes, looks at the size of logs."""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["Backoff", "Pace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds. The defaults are for production; tests take shorter ones."""

    restart_base: float = 1.0
    """Longest wait before the second start; it doubles with each failure in a row."""
    restart_limit: float = 60.0
    restart_fast: float = 0.5
    """Longest wait before the first restart of a component that ran for `worked`."""
    worked: float = 10.0
    stable: float = 60.0
    """A component that ran for so long starts over with its first wait."""
    ready_probe: float = 5.0
    """Between probes of a ready component."""
    log_check: float = 1.0
    """Between looks at the size of a log."""


class Backoff:
    """Waits between restarts of one component: exponential, with full jitter."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0

    def next_wait(self, *, ran_seconds: float) -> float:
        """Say for how many seconds to wait now that the component has ended after `ran_seconds`."""
        if ran_seconds >= self._pace.stable:
            self._failures = 0
        if self._failures == 0 and ran_seconds >= self._pace.worked:
            longest = self._pace.restart_fast
        else:
            longest = min(self._pace.restart_limit, self._pace.restart_base * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return random.uniform(0.0, longest)  # noqa: S311 - spreads load, guards nothing
