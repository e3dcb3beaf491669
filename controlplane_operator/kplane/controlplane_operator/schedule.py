"""Schedules of snapshots by cron expressions."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from cronsim import CronSim, CronSimError

__all__ = ["Schedule"]

_DELAY_AT_MOST: Final = timedelta(minutes=10)
_DELAY_SHARE: Final = 0.1
_SECOND: Final = timedelta(seconds=1)


class Schedule:
    """Times of a cron expression, in UTC."""

    def __init__(self, expression: str) -> None:
        """Parse the expression. Raises ValueError if it is invalid, or matches no time."""
        try:
            next(CronSim(expression, datetime.now(UTC)))
        except (CronSimError, StopIteration) as error:
            raise ValueError(f"{expression!r} is no schedule: {str(error) or 'it names no time'}") from None
        self._expression = expression

    @classmethod
    def read(cls, expression: str) -> Self | None:
        """Return the schedule; None if the expression is invalid."""
        try:
            return cls(expression)
        except ValueError:
            return None

    def last(self, now: datetime) -> datetime:
        """Return the latest time that is not after `now`."""
        # The iterator only yields times before its start.
        return next(CronSim(self._expression, now.replace(microsecond=0) + _SECOND, reverse=True))

    def following(self, time: datetime) -> datetime:
        """Return the first time after `time`."""
        return next(CronSim(self._expression, time))

    def delay(self, uid: str, *, at: datetime) -> timedelta:
        """Return the delay of the control plane with this uid after a scheduled time.

        The delay spreads control planes: a fixed share, derived from the uid, of a tenth of the interval or ten minutes
        at most.
        """
        share = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big") / 2**32
        return min(_DELAY_AT_MOST, (self.following(at) - at) * _DELAY_SHARE) * share
