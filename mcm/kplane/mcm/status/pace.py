"""Rate limit of writes to the status of a registration."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

__all__ = ["WritePace"]

_BURST: Final = 8
_PERIOD_SECONDS: Final = 5.0


class WritePace:
    """Allows `burst` writes at once, then a write each `period_seconds`; unused allowance accumulates up to `burst`.

    The limit is the generic cell rate algorithm. So the first transitions of an instance are written at once, and an
    instance that keeps changing causes a bounded rate of writes. `now` is the clock; tests replace it.
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
        """Time at which the rate of one write per period has caught up with all writes so far."""

    def note_write(self) -> None:
        """Count a write."""
        self._spent_until = max(self._now(), self._spent_until) + self._period_seconds

    def delay(self) -> float:
        """Return the seconds until the next write is allowed; 0 if it is allowed now."""
        return max(0.0, self._spent_until - self._allowance_seconds - self._now())

    def reset(self) -> None:
        """Restore the whole allowance."""
        self._spent_until = 0.0
