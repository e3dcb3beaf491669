"""Reads times that other programs wrote, and detects times of a clock that was ahead.

Such a time stays after the clock is corrected. A decision that waits for it would wait for as long as the clock was
ahead.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

__all__ = ["CLOCKS_DIFFER", "is_future", "read_time"]

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""Maximum difference between the clocks of two machines that is ignored."""


def is_future(time: datetime, *, now: datetime) -> bool:
    """Return whether a time is later than `now` by more than `CLOCKS_DIFFER`. Both have a time zone."""
    return time > now + CLOCKS_DIFFER


def read_time(value: object) -> datetime | None:
    """Return the time that an ISO 8601 text with a time zone stands for.

    Returns None for any other value, since users write annotations.
    """
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
