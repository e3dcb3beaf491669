"""How often the status of one registration is written."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["WritePace"]

_BURST: Final = 8
_PERIOD_SECONDS: Final = 5.0


class WritePace:
    """Lets `burst` writes through at once, then one each `period_seconds`; the allowance returns with time.

    It is the generic cell rate algorithm. So the first transitions of an instance are written at once, and an instance
    that goes to and fro for ever costs the management API a bounded rate. Tests replace `now`.
    """

    def __init__(
        self,
        *,
        burst: int = _BURST,
        period_seconds: float = _PERIOD_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowance_seconds = (burst - 1) * period_seconds
        self._period_seconds = period_seconds
        self._now = now
        self._spent_until = 0.0
        """When all writes so far would be over, one each period."""

    def note_write(self) -> None:
        """Count a write."""
        self._spent_until = max(self._now(), self._spent_until) + self._period_seconds

    def delay(self) -> float:
        """Return the seconds until the next write; 0: it may be made now."""
        return max(0.0, self._spent_until - self._allowance_seconds - self._now())

    def reset(self) -> None:
        """Give the whole allowance back."""
        self._spent_until = 0.0
