"""Recognizes times that a clock wrote while it was ahead.

Such a time stays after the clock is corrected. A decision that waits for it would wait as long as the clock was ahead.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

__all__ = ["CLOCKS_DIFFER", "is_future"]

CLOCKS_DIFFER: Final = timedelta(minutes=1)
"""Maximum difference between the clocks of two machines that counts as none."""


def is_future(time: datetime, *, now: datetime) -> bool:
    """Tell whether a time is later than the clocks of two machines may differ. Both have a time zone."""
    return time > now + CLOCKS_DIFFER
