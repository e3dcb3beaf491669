"""How often a component is looked at, and how long its restarts wait."""

from __future__ import annotations

from dataclasses import dataclass

from kplane.provider.aio.backoff import Backoff

__all__ = ["Pace", "RestartBackoff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds. The defaults are for production; tests take shorter ones."""

    restart_base: float = 1.0
    """Longest wait before the second start; it doubles with each failure in a row. Jitter takes off up to half."""
    restart_limit: float = 300.0
    stable: float = 300.0
    """A component that ran for so long starts over with its first wait. Less than the limit would undo the limit."""
    ready_probe: float = 5.0
    """Between probes of a ready component."""
    live_probe: float = 10.0
    """Between probes of whether a component hangs, which is killed after `live_failures` of them in a row."""
    live_failures: int = 6
    start_limit: float = 600.0
    """So long a component may take until it first answers that it lives."""
    refused_base: float = 600.0
    """Longest wait before the retry of a description that failed, while the former one runs; it doubles, as above."""
    refused_limit: float = 86400.0
    log_check: float = 1.0
    """Between looks at the size of a log."""


class RestartBackoff:
    """Grows the waits between restarts of one component; a stable run starts over."""

    def __init__(self, pace: Pace) -> None:
        self._backoff = Backoff(initial_seconds=pace.restart_base, maximum_seconds=pace.restart_limit)
        self._stable = pace.stable

    @property
    def failures(self) -> int:
        """How often the component has ended in a row."""
        return self._backoff.failures

    def next_wait(self, *, ran_seconds: float) -> float:
        """Return the seconds until the next start of the component, which has ended after `ran_seconds`."""
        if ran_seconds >= self._stable:
            self._backoff.reset()
        return self._backoff.next_delay()
