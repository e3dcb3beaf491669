"""Backups that count for retention after a new backup."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kplane.controlplane_operator.backup.saving import split_by_time

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
PRESENT = ["20261126T120000Z.age", "20261127T060000Z.age", "20261127T120030Z.age"]
AHEAD = ["20261127T120101Z.age", "20261129T120000Z.age"]


def test_backups_with_times_in_the_future_do_not_count() -> None:
    assert split_by_time([*PRESENT, *AHEAD], now=NOW) == (PRESENT, AHEAD)
    assert split_by_time([], now=NOW) == ([], [])


def test_present_backups_survive_a_clock_that_is_behind() -> None:
    new = "20261120T120000Z.age"
    assert split_by_time([new, *PRESENT], now=NOW - timedelta(days=7)) == ([new], PRESENT)
    assert split_by_time([new, *PRESENT], now=NOW) == ([new, *PRESENT], [])
