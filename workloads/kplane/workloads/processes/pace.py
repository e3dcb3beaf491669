"""Intervals between probes of a component, and delays before its restarts."""

from __future__ import annotations

from dataclasses import dataclass

from kplane.provider.aio.backoff import Backoff

__all__ = ["Pace", "RestartBackoff"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times in seconds. The defaults are for production; tests use shorter times."""

    restart_base: float = 1.0
    """Longest delay before the second start. It doubles with each consecutive failure. Jitter takes off up to half."""
    restart_limit: float = 300.0
    stable: float = 300.0
    """Run time after which the delay starts over. A value below `restart_limit` would make that limit ineffective."""
    ready_probe: float = 5.0
    """Interval between probes of a ready component."""
    live_probe: float = 10.0
    """Interval between liveness probes.

    After `live_failures` consecutive failures, the component hangs and is killed.
    """
    live_failures: int = 6
    start_limit: float = 600.0
    """Time within which a component must pass its first liveness probe."""
    refused_base: float = 600.0
    """Longest delay before a failed description is retried, while the former description runs. Doubles as above."""
    refused_limit: float = 86400.0
    log_check: float = 1.0
    """Interval between checks of the size of a log."""


class RestartBackoff:
    """Increases the delays between restarts of a component. After a stable run, the delays start over."""

    def __init__(self, pace: Pace) -> None:
        self._backoff = Backoff(initial_seconds=pace.restart_base, maximum_seconds=pace.restart_limit)
        self._stable = pace.stable

    @property
    def failures(self) -> int:
        """Number of consecutive ends of the component."""
        return self._backoff.failures

    def next_wait(self, *, ran_seconds: float) -> float:
        """Return the delay in seconds before the next start of the component, which has ended after `ran_seconds`."""
        if ran_seconds >= self._stable:
            self._backoff.reset()
        return self._backoff.next_delay()
