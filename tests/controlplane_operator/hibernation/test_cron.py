"""Next times of CronJobs, compared with the results of the library that Kubernetes uses.

`robfig_cron/times.tsv` is a fixed table of the answers of robfig/cron v3.0.1: 1,085 rows of written and random
expressions, in 16 time zones. No test runs the library, so no machine needs Go. `robfig_cron/main.go` has made the
table once, and its head says how to make the table again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kplane.controlplane_operator.hibernation.cron import next_time

TIMES = Path(__file__).parent / "robfig_cron" / "times.tsv"
NOW = datetime(2026, 11, 23, 12, 0, 30, tzinfo=UTC)
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/Havana",
    "Australia/Lord_Howe",
    "Asia/Beirut",
    "Asia/Gaza",
    "Antarctica/Troll",
)
NEVER = "never"
INVALID = "invalid"


def library_rows() -> Iterator[tuple[str, datetime, str]]:
    for line in TIMES.read_text().splitlines():
        expression, start, result = line.split("\t")
        yield expression.replace("\\t", "\t"), datetime.fromtimestamp(int(start), UTC), result


def computed(expression: str, after: datetime) -> str:
    try:
        result = next_time(expression, zone="UTC", after=after)
    except ValueError:
        return INVALID
    return str(int(result.timestamp())) if result is not None else NEVER


def changes_clock(expression: str, start: datetime, end: datetime) -> bool:
    zone = ZoneInfo(expression.partition(" ")[0].removeprefix("TZ="))
    hours = int((end - start) / timedelta(hours=1)) + 2
    return len({(start + timedelta(hours=n)).astimezone(zone).utcoffset() for n in range(hours)}) > 1


def test_next_time_equals_library_or_is_earlier_near_clock_change() -> None:
    earlier = 0
    rows = list(library_rows())
    for expression, start, result in rows:
        actual = computed(expression, start)
        if actual == result:
            continue
        assert actual.isdigit(), (expression, start, result, actual)
        assert result.isdigit(), (expression, start, result, actual)
        assert int(actual) < int(result), (expression, start, result, actual)
        assert changes_clock(expression, start, datetime.fromtimestamp(int(actual), UTC)), (expression, start)
        earlier += 1
    assert len(rows) > 1000
    assert earlier < 15


def numbers(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    bounds = st.tuples(number, number).map(sorted).map(lambda pair: f"{pair[0]}-{pair[1]}")
    ranges = st.one_of(st.sampled_from(["*", "?"]), number.map(str), bounds)
    steps = st.one_of(st.just(""), st.integers(1, high).map(lambda step: f"/{step}"))
    items = st.tuples(ranges, steps).map("".join)
    return st.lists(items, min_size=1, max_size=3).map(",".join)


SCHEDULES = st.tuples(numbers(0, 59), numbers(0, 23), numbers(1, 31), numbers(1, 12), numbers(0, 6)).map(" ".join)
INSTANTS = st.integers(1_577_836_800, 1_893_456_000).map(lambda seconds: datetime.fromtimestamp(seconds, UTC))


@settings(max_examples=60, deadline=None)
@given(schedule=SCHEDULES, zone=st.sampled_from(ZONES), after=INSTANTS, last=st.integers(0, 400 * 86400))
def test_next_time_follows_start_and_no_later_start_misses_it(
    schedule: str, zone: str, after: datetime, last: int
) -> None:
    result = next_time(schedule, zone=zone, after=after)
    if result is None:
        return
    assert result > after
    assert result.second == 0
    # A later start before the result gives the same time, or an earlier time near a clock change.
    later_result = next_time(schedule, zone=zone, after=after + (result - after) / 2)
    assert later_result is not None
    assert later_result <= result or changes_clock(f"TZ={zone} ", after, result)
    result_with_last = next_time(schedule, zone=zone, after=after, last=after - timedelta(seconds=last))
    assert result_with_last is not None
    assert after < result_with_last <= result


@settings(max_examples=60, deadline=None)
@given(schedule=SCHEDULES, after=INSTANTS)
def test_next_time_matches_each_field_in_utc(schedule: str, after: datetime) -> None:
    result = next_time(schedule, zone="UTC", after=after)
    fields = schedule.split()
    day_or_weekday = not any(unrestricted(field) for field in (fields[2], fields[4]))

    def matches(moment: datetime) -> bool:
        parts = (moment.minute, moment.hour, moment.day, moment.month, moment.isoweekday() % 7)
        limits = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
        minute, hour, day, month, weekday = (
            any(allows(item, part, *limit) for item in field.split(","))
            for field, part, limit in zip(fields, parts, limits, strict=True)
        )
        return minute and hour and month and (day or weekday if day_or_weekday else day and weekday)

    assert result is None or matches(result)
    # No earlier minute matches, within a day after the start.
    minute = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    end = min(result or minute + timedelta(days=1), minute + timedelta(days=1))
    while minute < end:
        assert not matches(minute)
        minute += timedelta(minutes=1)


def unrestricted(field: str) -> bool:
    return any(item in {"*", "?", "*/1", "?/1"} for item in field.split(","))


def allows(item: str, number: int, low: int, high: int) -> bool:
    bounds, _, step = item.partition("/")
    first, _, last = bounds.partition("-")
    begin, end = (low, high) if first in {"*", "?"} else (int(first), int(last or (high if step else first)))
    return begin <= number <= end and (number - begin) % int(step or 1) == 0


@pytest.mark.parametrize(
    ("schedule", "last", "expected"),
    [
        ("@every 1h", "2026-11-23T11:15:00", "2026-11-23T12:15:00"),
        ("@every 1h", "2026-11-20T11:15:00", "2026-11-23T12:15:00"),
        ("@every 1h", "2026-11-24T11:15:00", "2026-11-23T13:00:30"),
        ("@hourly", "2026-11-23T12:00:00", "2026-11-23T13:00:00"),
        ("@hourly", "0001-01-01T00:00:00", "2026-11-23T13:00:00"),
    ],
)
def test_last_run_affects_schedules_with_every_only(schedule: str, last: str, expected: str) -> None:
    result = next_time(schedule, zone="UTC", after=NOW, last=datetime.fromisoformat(last).replace(tzinfo=UTC))
    assert result == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_next_time_without_zone_follows_local_clock_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Europe/Berlin")
        time.tzset()
        result = next_time("0 6 * * 1", zone=None, after=datetime(2025, 3, 29, 12, tzinfo=UTC))
    time.tzset()
    assert result == datetime(2025, 3, 31, 4, tzinfo=UTC)


@pytest.mark.parametrize("zone", ["../../etc", "Europe", "Nowhere/AtAll", "/etc/localtime"])
def test_next_time_raises_value_error_if_the_zone_is_unknown(zone: str) -> None:
    with pytest.raises(ValueError, match=r"zone|TZPATH|normalized|absolute|directory"):
        next_time("* * * * *", zone=zone, after=NOW)


def test_next_time_refuses_schedule_with_too_many_characters() -> None:
    full = [",".join(map(str, range(low, high + 1))) for low, high in ((0, 59), (0, 23), (1, 31), (1, 12), (0, 6))]
    assert next_time(" ".join(full), zone="UTC", after=NOW) == NOW.replace(minute=1, second=0)
    with pytest.raises(ValueError, match="characters"):
        next_time("0," * 100_000 + "0 * * * *", zone="UTC", after=NOW)
