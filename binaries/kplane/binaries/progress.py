"""Reports the progress of long work."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

__all__ = ["Heartbeat", "Report", "print_line"]

Report = Callable[[str], None]


def print_line(line: str) -> None:
    """Print a line of progress on standard error, without buffering."""
    print(line, file=sys.stderr, flush=True)


class Heartbeat:
    """Reports at intervals that long work continues."""

    def __init__(self, report: Report, *, what: str, every_seconds: float = 15.0) -> None:
        self._report = report
        self._what = what
        self._every_seconds = every_seconds
        self._started = self._last = time.monotonic()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._started

    def beat(self, *, detail: str = "") -> None:
        """Report `detail` and the seconds since the start, at most once in `every_seconds`. Call it often."""
        now = time.monotonic()
        if now - self._last >= self._every_seconds:
            self._last = now
            self._report(f"{self._what}: {detail + ', ' if detail else ''}{self.elapsed_seconds:.0f} s elapsed")
