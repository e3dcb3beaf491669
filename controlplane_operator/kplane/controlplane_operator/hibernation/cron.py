"""Next time of a CronJob, computed as kube-controller-manager does.

The notation is that of `ParseStandard` in robfig/cron v3.0.1, which Kubernetes uses. It differs from cron for days: a
field with a step is a restriction. If both day fields are restricted, a day that matches either of them matches.
"""

from __future__ import annotations

import re
import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

__all__ = ["next_time"]

_Offset = Callable[[int], int]
"""Returns how far a zone is ahead of UTC at a Unix time. Both are in seconds."""

_NAMED: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_ZONE: Final = re.compile(r"(?:CRON_)?TZ=(?P<zone>[^ ]*) (?P<rest>.*)", re.DOTALL)
_NUMBER: Final = re.compile(r"\+?[0-9]{1,9}|-0{1,9}")
_DURATION: Final = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+|[-+]?0")
_DURATION_PART: Final = re.compile(r"([0-9.]+)([a-zµμ]+)")
_UNIT_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_DURATION_SECONDS: Final = 2**63 / 10**9
_MONTHS: Final[dict[str, int]] = dict(
    zip(("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), range(1, 13), strict=True)
)
_WEEKDAYS: Final[dict[str, int]] = dict(zip(("sun", "mon", "tue", "wed", "thu", "fri", "sat"), range(7), strict=True))
_FIELD_COUNT: Final = 5
_MAX_CHARACTERS: Final = 1024
"""Limit of kplane; Kubernetes has none. Lists of all numbers in each field fit. A megabyte would take seconds to
parse."""
_YEARS: Final = 5
"""Number of years that robfig/cron searches ahead."""
_LONGEST: Final = dict(enumerate((31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31), 1))
"""The days of each month in a leap year."""
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - times of day in any zone
_ONE_DAY: Final = timedelta(days=1)
_MINUTE_SECONDS: Final = 60
_HOUR_SECONDS: Final = 3600
_YEAR_SECONDS: Final = 366 * 24 * 3600
_MONTH, _DAY, _HOUR, _MINUTE, _SECOND = range(5)
"""The units of a time, in the order in which they are compared."""


@dataclass(frozen=True, slots=True)
class _Fields:
    """The numbers that each field of a schedule allows."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool
    """Whether the day of the month or the day of the week suffices, because both are restricted."""

    def is_never(self) -> bool:
        """Return whether no time ever matches: `,` allows no number, and February has no day 30."""
        if not (self.minutes and self.hours and self.months):
            return True
        if self.either_day:
            return not (self.days or self.weekdays)
        longest = max(_LONGEST[month] for month in self.months)
        return not self.weekdays or min(self.days, default=longest + 1) > longest

    def has_day(self, local: datetime) -> bool:
        """Return whether the day of a local time matches; the month is not compared."""
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        return day or weekday if self.either_day else day and weekday

    def first_mismatch(self, local: datetime, *, start: int = _MONTH) -> int | None:
        """Return the first unit, from `start` on, in which a local time differs; None if the time matches."""
        if start <= _MONTH and local.month not in self.months:
            return _MONTH
        if start <= _DAY and not self.has_day(local):
            return _DAY
        if start <= _HOUR and local.hour not in self.hours:
            return _HOUR
        if start <= _MINUTE and local.minute not in self.minutes:
            return _MINUTE
        return _SECOND if local.second else None

    def next_day(self, local: datetime) -> datetime:
        """Return the next midnight of a day that matches, or of the first day of the next month."""
        midnight = datetime(local.year, local.month, local.day) + _ONE_DAY  # noqa: DTZ001 - as above
        while midnight.day != 1 and not self.has_day(midnight):
            midnight += _ONE_DAY
        return midnight


def next_time(schedule: str, *, zone: str | None, after: datetime, last: datetime | None = None) -> datetime | None:
    """Return the first time of a schedule after `after`, in UTC; None if it never comes.

    `last` is the time from which kube-controller-manager counts: lastScheduleTime, else creationTimestamp. `@every`
    counts from it. Without `zone`, the zone of this machine counts, as for kube-controller-manager. If a clock change
    allows several answers, the earliest is returned. Raises ValueError if Kubernetes would refuse the schedule, if it
    is too long, or if the zone is unknown here.
    """
    if len(schedule) > _MAX_CHARACTERS:
        raise ValueError(f"it has more than {_MAX_CHARACTERS} characters")
    begin = int(after.timestamp() // 1)
    counted_from = min(begin, int(last.timestamp() // 1)) if last is not None else begin
    if "TZ" not in schedule and zone is not None:
        schedule = f"TZ={zone} {schedule}"
    offset, expression = _split_zone(schedule)
    if expression.startswith("@every "):
        delay = _whole_seconds(expression.removeprefix("@every "))
        unix_time: int | None = counted_from + ((begin - counted_from) // delay + 1) * delay
    else:
        fields = _read_fields(expression)
        unix_time = (
            _first_time(fields, begin, counted_from=counted_from, offset=offset) if not fields.is_never() else None
        )
    try:
        return datetime.fromtimestamp(unix_time, UTC) if unix_time is not None else None
    except (OverflowError, ValueError):
        return None  # after the year 9999


def _first_time(fields: _Fields, begin: int, *, counted_from: int, offset: _Offset) -> int | None:
    """Return the earliest of the matching times and the times that robfig/cron returns."""
    times = [_next_match(fields, begin, offset=offset), _next_by_library(fields, begin, offset=offset)]
    if begin - _YEARS * _YEAR_SECONDS < counted_from < begin:
        times.append(_next_by_library(fields, counted_from, offset=offset))
    return min((time for time in times if time is not None and time > begin), default=None)


def _split_zone(schedule: str) -> tuple[_Offset, str]:
    """Return the zone at the start of a schedule, and the rest of the schedule."""
    if not schedule.startswith(("TZ=", "CRON_TZ=")):
        return _offset_here, schedule
    parts = _ZONE.fullmatch(schedule)
    if parts is None:
        raise ValueError(f"{schedule!r} has only a time zone")
    name = parts["zone"] or "UTC"
    return _offset_here if name == "Local" else _offset_of(name), parts["rest"].strip()


def _offset_here(time: int) -> int:
    return clock.localtime(time).tm_gmtoff


def _offset_of(name: str) -> _Offset:
    try:
        zone = ZoneInfo(name)
    except (LookupError, OSError) as error:
        raise ValueError(str(error)) from error

    def offset(time: int) -> int:
        local = datetime.fromtimestamp(time, zone)
        return int((local.utcoffset() or timedelta()).total_seconds())

    return offset


def _whole_seconds(duration: str) -> int:
    """Return the seconds of a duration in the notation of Go, at least 1."""
    if not _DURATION.fullmatch(duration):
        raise ValueError(f"{duration!r} is no duration")
    seconds = sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))
    if seconds > _MAX_DURATION_SECONDS:
        raise ValueError(f"{duration!r} is too long")
    return 1 if duration.startswith("-") else max(1, int(round(seconds, 9)))


def _read_fields(expression: str) -> _Fields:
    texts = _NAMED.get(expression, expression).split()
    if len(texts) != _FIELD_COUNT:
        raise ValueError(f"{expression!r} does not have {_FIELD_COUNT} fields")
    minutes, _ = _read_field(texts[0], 0, 59)
    hours, _ = _read_field(texts[1], 0, 23)
    days, any_day = _read_field(texts[2], 1, 31)
    months, _ = _read_field(texts[3], 1, 12, _MONTHS)
    weekdays, any_weekday = _read_field(texts[4], 0, 6, _WEEKDAYS)
    return _Fields(minutes, hours, days, months, weekdays, either_day=not (any_day or any_weekday))


def _read_field(text: str, low: int, high: int, names: dict[str, int] | None = None) -> tuple[frozenset[int], bool]:
    """Return the numbers that a field allows, and whether a star without a step allows all of them."""
    numbers: set[int] = set()
    is_unrestricted = False
    for item in filter(None, text.split(",")):
        bounds, *steps = item.split("/")
        first, *ends = bounds.split("-")
        step = _read_number(steps[0]) if steps else 1
        is_star = first in {"*", "?"}
        begin = low if is_star else _read_number(first, names)
        end = high if is_star or (steps and not ends) else _read_number(ends[0], names) if ends else begin
        if len(steps) > 1 or (len(ends) > 1 and not is_star) or step == 0 or not low <= begin <= end <= high:
            raise ValueError(f"{item!r} is no range from {low} to {high}")
        numbers.update(range(begin, end + 1, step))
        is_unrestricted |= is_star and step == 1
    return frozenset(numbers), is_unrestricted


def _read_number(text: str, names: dict[str, int] | None = None) -> int:
    if names is not None and text.lower() in names:
        return names[text.lower()]
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{text!r} is no number")
    return int(text)


def _next_match(fields: _Fields, after: int, *, offset: _Offset) -> int | None:
    """Return the first time after `after` whose local time matches."""
    time = after + _MINUTE_SECONDS - _local(after, offset).second
    last_year = _local(time, offset).year + _YEARS
    while (local := _local(time, offset)).year <= last_year:
        unit = fields.first_mismatch(local)
        if unit is None:
            return time
        if unit == _MONTH:
            target = _first_of_next_month(local)
        elif unit == _DAY:
            target = fields.next_day(local)
        elif unit == _HOUR:
            target = local.replace(minute=0, second=0) + timedelta(hours=1)
        else:
            target = local.replace(second=0) + timedelta(minutes=1)
        time += _jump(time, int((target - local).total_seconds()), offset=offset)
    return None


def _jump(time: int, seconds: int, *, offset: _Offset) -> int:
    """Return `seconds`, or less if the clock changes meanwhile.

    A jump over a clock change could miss times that match.
    """
    here = offset(time)
    if offset(time + seconds) == here:
        return seconds
    before, beyond = 0, seconds // _MINUTE_SECONDS
    while beyond - before > 1:
        middle = (before + beyond) // 2
        before, beyond = (middle, beyond) if offset(time + middle * _MINUTE_SECONDS) == here else (before, middle)
    return before * _MINUTE_SECONDS or min(seconds, _MINUTE_SECONDS)


def _next_by_library(fields: _Fields, after: int, *, offset: _Offset) -> int | None:
    """Return the result of `SpecSchedule.Next` of robfig/cron.

    Near a clock change, the library skips matching times and returns some that do not match.
    """
    time, truncates, start = after + 1, True, _MONTH
    last_year = _local(time, offset).year + _YEARS
    while True:
        local = _local(time, offset)
        if start == _MONTH and local.year > last_year:
            return None
        unit = fields.first_mismatch(local, start=start)
        if unit is None:
            return time
        time, wraps = _ADVANCE[unit](time, offset, truncates)
        truncates = False
        # The library compares larger units again only after such a carry.
        start = _MONTH if wraps else unit


def _advance_month(time: int, offset: _Offset, truncates: bool) -> tuple[int, bool]:
    if truncates:
        time = _unix(_local(time, offset).replace(day=1, hour=0, minute=0, second=0), offset)
    local = _local(time, offset)
    time = _unix(_first_of_next_month(local) + (local - local.replace(day=1, hour=0, minute=0, second=0)), offset)
    return time, _local(time, offset).month == 1


def _advance_day(time: int, offset: _Offset, truncates: bool) -> tuple[int, bool]:
    if truncates:
        time = _unix(_local(time, offset).replace(hour=0, minute=0, second=0), offset)
    local = _local(time, offset)
    time = _unix(local + _ONE_DAY, offset)
    hour = _local(time, offset).hour
    if hour != 0:
        time += (24 - hour if hour > 12 else -hour) * _HOUR_SECONDS
    return time, _local(time, offset).day == 1


def _advance_hour(time: int, offset: _Offset, truncates: bool) -> tuple[int, bool]:
    if truncates:
        time = _unix(_local(time, offset).replace(minute=0, second=0), offset)
    time += _HOUR_SECONDS
    return time, _local(time, offset).hour == 0


def _advance_minute(time: int, offset: _Offset, truncates: bool) -> tuple[int, bool]:
    if truncates:
        time -= time % _MINUTE_SECONDS
    time += _MINUTE_SECONDS
    return time, _local(time, offset).minute == 0


def _advance_second(time: int, offset: _Offset, _truncates: bool) -> tuple[int, bool]:
    return time + _MINUTE_SECONDS - _local(time, offset).second, True


_ADVANCE: Final = {
    _MONTH: _advance_month,
    _DAY: _advance_day,
    _HOUR: _advance_hour,
    _MINUTE: _advance_minute,
    _SECOND: _advance_second,
}


def _first_of_next_month(local: datetime) -> datetime:
    return datetime(local.year + local.month // 12, local.month % 12 + 1, 1)  # noqa: DTZ001 - as above


def _local(time: int, offset: _Offset) -> datetime:
    return _EPOCH + timedelta(seconds=time + offset(time))


def _unix(local: datetime, offset: _Offset) -> int:
    """Return the Unix time of a local time; if there are two or none, the same as `time.Date` of Go."""
    wall = int((local - _EPOCH).total_seconds())
    ahead = offset(wall)
    return wall - offset(wall - ahead) if ahead else wall
