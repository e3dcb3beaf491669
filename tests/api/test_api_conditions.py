"""Conditions: their time moves with their status, and with nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import ValidationError

from kplane.api import Condition, ConditionStatus, find_condition, is_true, set_condition

THEN = datetime(2026, 5, 4, 12, 0, 0, tzinfo=UTC)
LATER = THEN + timedelta(hours=1)


def ready(status: ConditionStatus, *, among: list[Condition], now: datetime, message: str = "") -> list[Condition]:
    return set_condition(
        among, type="Ready", status=status, reason="Because", message=message, observed_generation=3, now=now
    )


def test_the_time_moves_when_the_status_changes() -> None:
    conditions = ready("True", among=ready("False", among=[], now=THEN), now=LATER)
    assert [condition.last_transition_time for condition in conditions] == [LATER]


def test_the_time_stays_while_the_status_does() -> None:
    conditions = ready("False", among=ready("False", among=[], now=THEN), now=LATER, message="still not")
    assert [(condition.last_transition_time, condition.message) for condition in conditions] == [(THEN, "still not")]


def test_setting_the_same_again_changes_nothing() -> None:
    once = ready("False", among=[], now=THEN)
    assert ready("False", among=once, now=LATER) == once


def test_others_stay_as_and_where_they_are() -> None:
    first = ready("True", among=[], now=THEN)
    second = set_condition(
        first, type="Supported", status="False", reason="Not", message="", observed_generation=None, now=THEN
    )
    third = ready("False", among=second, now=LATER)
    assert [condition.type for condition in third] == ["Ready", "Supported"]
    assert third[1] == second[1]
    assert second[0] == first[0]


def test_the_time_is_written_as_kubernetes_does() -> None:
    now = datetime(2026, 5, 4, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    (condition,) = ready("True", among=[], now=now)
    assert condition.model_dump(mode="json", by_alias=True)["lastTransitionTime"] == "2026-05-04T12:00:00Z"


def test_a_message_too_long_for_the_api_server_is_cut() -> None:
    (condition,) = ready("False", among=[], now=THEN, message="x" * 40_000)
    assert len(condition.message) == 32_768
    assert condition.message.endswith("x…")


def test_a_reason_that_is_no_word_is_refused() -> None:
    with pytest.raises(ValidationError, match="reason"):
        set_condition([], type="Ready", status="True", reason="two words", message="", observed_generation=1, now=THEN)


def test_finding_and_asking() -> None:
    conditions = ready("Unknown", among=[], now=THEN)
    assert find_condition(conditions, "Ready") is conditions[0]
    assert find_condition(conditions, "Other") is None
    assert not is_true(conditions, "Ready")
    assert not is_true(conditions, "Other")
    assert is_true(ready("True", among=conditions, now=LATER), "Ready")


def test_time_in_the_future_becomes_now_at_the_next_write() -> None:
    ahead = ready("False", among=[], now=THEN + timedelta(days=2))
    corrected = ready("False", among=ahead, now=THEN)
    assert [condition.last_transition_time for condition in corrected] == [THEN]
    # Clocks of two machines differ a little.
    soon = ready("False", among=[], now=THEN + timedelta(seconds=30))
    assert ready("False", among=soon, now=THEN) == soon
