"""When a CronJob is due next: its schedule in the notation of Kubernetes, and its time zone."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

__all__ = ["next_time"]

_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def next_time(schedule: str, *, zone: str | None, after: datetime) -> datetime | None:
    """Return the first time of a schedule after this one; None if it never comes.

    Without a zone, that of this machine counts, as it does for kube-controller-manager. Raises ValueError if the
    schedule or the zone is not understood, such as `@every 1h`.
    """
    expression = _NAMED.get(schedule.strip(), schedule).replace("?", "*")
    try:
        start = after.astimezone(ZoneInfo(zone)) if zone else after.astimezone()
        return next(CronSim(expression, start))
    except StopIteration:
        return None
    except (CronSimError, LookupError, OSError) as error:
        raise ValueError(str(error)) from error
