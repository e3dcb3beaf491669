"""Tells an Envoy that hangs from one that is busy, by its administration interface and its processor time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kplane.workloads import processor_seconds

__all__ = ["Silence"]

_HANG_SECONDS: Final = 30.0
"""Seconds of silence after which an Envoy without processor time hangs."""
_FAILURES: Final = 3
"""Minimum number of failed requests in this time. A controller that was itself stopped has only one."""
_BUSY_SHARE: Final = 0.01
"""Share of a CPU that a busy Envoy uses at least. An idle Envoy needs less, and a stopped one none."""


class Silence:
    """Time without responses of Envoy's administration interface.

    This interface belongs to Envoy's main thread. It is silent while that thread loads a large configuration, or while
    the machine is overloaded. A restart would make both worse, so an Envoy that uses processor time does not hang.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[int], float | None] = processor_seconds,
    ) -> None:
        """Create a silence that has not begun.

        `clock` returns seconds without those of a suspended machine. `used` returns the processor seconds of a process.
        """
        self._clock = clock
        self._used = used
        self._since: float | None = None
        self._pid: int | None = None
        self._began = 0.0
        self._used_before: float | None = None
        self._failures = 0

    @property
    def seconds(self) -> float | None:
        """Seconds since the first request without a response; None if Envoy responded to the last request."""
        return None if self._since is None else self._clock() - self._since

    def end(self) -> None:
        """Record a response."""
        self._since, self._pid = None, None

    def note(self, pid: int | None) -> None:
        """Record a request without a response. `pid` is Envoy's process; None if it does not run, or is not known."""
        if self._since is None:
            self._since = self._clock()
        if pid is None or pid != self._pid:
            self._begin(pid)
        self._failures += 1

    def is_hang(self) -> bool:
        """Return whether Envoy hangs: it uses no processor time and sends no response for `_HANG_SECONDS`."""
        if self._pid is None or self._failures < _FAILURES:
            return False
        seconds = self._clock() - self._began
        if seconds < _HANG_SECONDS:
            return False
        used = self._used(self._pid)
        if used is None or self._used_before is None:
            return False
        if used - self._used_before >= _BUSY_SHARE * seconds:
            self._begin(self._pid)
            return False
        return True

    def _begin(self, pid: int | None) -> None:
        """Begin to measure the processor time of a process."""
        self._pid, self._began, self._failures = pid, self._clock(), 0
        self._used_before = None if pid is None else self._used(pid)
