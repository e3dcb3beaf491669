"""Parsing and bounds of durations."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from kplane.api.durations import duration_within, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("24h", 86400), ("90m", 5400), ("1h30m", 5400), ("1.5h", 5400), ("600s", 600), ("1h1m1.5s", 3661.5), ("0s", 0)],
)
def test_parse_duration_sums_hours_minutes_and_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "24", "h", "1d", "-1h", "1 h", "1h ", "30m1h", "1h1h", "1.h", ".5h", "1e3s", "\u0661h", "1h\n"]
)
def test_parse_duration_refuses_other_texts(text: str) -> None:
    with pytest.raises(ValueError, match="such as 24h"):
        parse_duration(text)


def test_duration_within_accepts_both_bounds() -> None:
    adapter: TypeAdapter[str] = TypeAdapter(Annotated[str, duration_within("10m", "24h")])
    for text in ("10m", "600s", "24h"):
        assert adapter.validate_python(text) == text
    for text in ("599s", "24h0.001s"):
        with pytest.raises(ValidationError, match="not from 10m to 24h"):
            adapter.validate_python(text)
