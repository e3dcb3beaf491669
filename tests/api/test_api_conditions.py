"""Conditions: the transition time changes only with the status."""

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


def test_transition_time_changes_with_the_status() -> None:
    conditions = ready("True", among=ready("False", among=[], now=THEN), now=LATER)
    assert [condition.last_transition_time for condition in conditions] == [LATER]


def test_transition_time_is_kept_if_only_message_changes() -> None:
    conditions = ready("False", among=ready("False", among=[], now=THEN), now=LATER, message="still not")
    assert [(condition.last_transition_time, condition.message) for condition in conditions] == [(THEN, "still not")]


def test_setting_an_equal_condition_is_a_no_op() -> None:
    once = ready("False", among=[], now=THEN)
    assert ready("False", among=once, now=LATER) == once


def test_set_condition_keeps_other_conditions_and_order() -> None:
    first = ready("True", among=[], now=THEN)
    second = set_condition(
        first, type="Supported", status="False", reason="Not", message="", observed_generation=None, now=THEN
    )
    third = ready("False", among=second, now=LATER)
    assert [condition.type for condition in third] == ["Ready", "Supported"]
    assert third[1] == second[1]
    assert second[0] == first[0]


def test_transition_time_is_serialized_in_utc_seconds() -> None:
    now = datetime(2026, 5, 4, 14, 0, 0, 123456, tzinfo=timezone(timedelta(hours=2)))
    (condition,) = ready("True", among=[], now=now)
    assert condition.model_dump(mode="json", by_alias=True)["lastTransitionTime"] == "2026-05-04T12:00:00Z"


def test_long_message_is_truncated_to_32768_characters() -> None:
    (condition,) = ready("False", among=[], now=THEN, message="x" * 40_000)
    assert len(condition.message) == 32_768
    assert condition.message.endswith("x…")


def test_reason_with_spaces_is_refused() -> None:
    with pytest.raises(ValidationError, match="reason"):
        set_condition([], type="Ready", status="True", reason="two words", message="", observed_generation=1, now=THEN)


def test_find_condition_and_is_true_handle_missing_types() -> None:
    conditions = ready("Unknown", among=[], now=THEN)
    assert find_condition(conditions, "Ready") is conditions[0]
    assert find_condition(conditions, "Other") is None
    assert not is_true(conditions, "Ready")
    assert not is_true(conditions, "Other")
    assert is_true(ready("True", among=conditions, now=LATER), "Ready")


def test_future_transition_time_is_corrected_at_next_write() -> None:
    ahead = ready("False", among=[], now=THEN + timedelta(days=2))
    corrected = ready("False", among=ahead, now=THEN)
    assert [condition.last_transition_time for condition in corrected] == [THEN]
    # Clocks of two machines may differ slightly.
    soon = ready("False", among=[], now=THEN + timedelta(seconds=30))
    assert ready("False", among=soon, now=THEN) == soon
