"""Backups that are removed after a new one."""

from __future__ import annotations

from datetime import UTC, datetime

from kplane.controlplane_operator.backup.saving import outdated

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
OLD = ["20261126T120000Z.age", "20261127T060000Z.age"]
NEW = "20261127T120000Z.age"
AHEAD = ["20261129T060000Z.age", "20261129T120000Z.age"]


def test_oldest_backups_are_removed() -> None:
    assert outdated([*OLD, NEW], keep=2, now=NOW) == OLD[:1]
    assert outdated([*OLD, NEW], keep=3, now=NOW) == []


def test_new_backup_stays_when_others_have_times_in_the_future() -> None:
    assert outdated([*OLD, NEW, *AHEAD], keep=3, now=NOW) == AHEAD
    assert outdated([NEW, *AHEAD], keep=1, now=NOW) == AHEAD


def test_backup_of_a_clock_that_differs_a_little_counts_by_its_time() -> None:
    names = [*OLD, "20261127T120030Z.age"]
    assert outdated(names, keep=2, now=NOW) == OLD[:1]
