"""Parsing of times in annotations, which users may write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kplane.api.clocks import read_time


@pytest.mark.parametrize("value", [None, 5, "", "soon", "2026-11-28T10:00:00"])
def test_read_time_returns_none_without_time_and_zone(value: object) -> None:
    assert read_time(value) is None


def test_read_time_parses_time_with_zone() -> None:
    assert read_time("2026-11-28T10:00:00Z") == datetime(2026, 11, 28, 10, tzinfo=UTC)
