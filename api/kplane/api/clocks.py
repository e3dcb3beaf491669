"""Reads times that other programs wrote, and recognizes those of a clock that was ahead.

Such a time stays after the clock is corrected. A decision that waits for it would wait as long as the clock was ahead.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

__all__ = ["CLOCKS_DIFFER", "is_future", "read_time"]

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""Maximum difference between the clocks of two machines that counts as none."""


def is_future(time: datetime, *, now: datetime) -> bool:
    """Tell whether a time is later than the clocks of two machines may differ. Both have a time zone."""
    return time > now + CLOCKS_DIFFER


def read_time(value: object) -> datetime | None:
    """Return a time in ISO 8601 that has a time zone; None for anything else, since users write annotations."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return time if time is not None and time.tzinfo is not None else None
