"""Status of a control plane while it falls asleep, sleeps and wakes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.api import ControlPlane, HibernationStatus
from kplane.api.reasons import Reason
from kplane.controlplane_operator.hibernation.decision import Decision
from kplane.controlplane_operator.hibernation.outcome import Outcome, begun, ended
from kplane.controlplane_operator.status.errors import ConditionError

NOW = datetime.now(UTC)
SLEEP = HibernationStatus.model_validate({"since": NOW.isoformat(), "reason": "NotUsedYet", "observedGeneration": 3})
ASLEEP, AWAKE = Decision(SLEEP), Decision(None, "a client asked for it")
STARTS = ConditionError(Reason.API_SERVER_NOT_READY, "it starts")


def control_plane(*, sleep: bool = False, told: str | None = None, since: float = 0.0) -> ControlPlane:
    status: dict[str, Any] = {"endpoint": "https://acme"}
    if sleep:
        status["hibernation"] = SLEEP.model_dump(mode="json", by_alias=True)
    if told is not None:
        transition = (datetime.now(UTC) - timedelta(seconds=since)).isoformat()
        hibernated = {"type": "Hibernated", "status": told, "reason": "FallingAsleep", "message": ""}
        status["conditions"] = [hibernated | {"lastTransitionTime": transition}]
    metadata = {"name": "acme", "uid": "1", "generation": 3}
    return ControlPlane.model_validate({"metadata": metadata, "spec": {}, "status": status})


def words(outcome: Outcome | None) -> tuple[str | None, str | None]:
    """Return status and reason of Hibernated, and the reason of Ready."""
    assert outcome is not None
    condition = f"{outcome.told[0]}/{outcome.told[1]}" if outcome.told is not None else None
    return condition, outcome.ready[0] if outcome.ready is not None else None


def test_begun_returns_falling_asleep_waking_or_none() -> None:
    sleep_outcome = begun(control_plane(), ASLEEP)
    assert words(sleep_outcome) == ("False/FallingAsleep", "FallingAsleep")
    assert sleep_outcome is not None
    assert sleep_outcome.sleep == SLEEP
    wake_outcome = begun(control_plane(sleep=True, told="True"), AWAKE)
    assert words(wake_outcome) == ("False/Waking", "Waking")
    assert wake_outcome is not None
    assert wake_outcome.sleep == SLEEP
    assert begun(control_plane(sleep=True, told="False"), ASLEEP) is None
    assert begun(control_plane(), AWAKE) is None
    unpublished_control_plane = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}})
    assert begun(unpublished_control_plane, ASLEEP) is None


@pytest.mark.parametrize(
    ("failure", "asleep", "expected"),
    [
        (None, True, ("True/Hibernated", "Hibernated")),
        (None, False, ("False/FallingAsleep", "FallingAsleep")),
        (ConditionError(Reason.FALLING_ASLEEP, "it ends"), False, ("False/FallingAsleep", "FallingAsleep")),
        (ConditionError(Reason.SLEEP_FAILED, "it does not end"), False, ("False/SleepFailed", "FallingAsleep")),
        (ConditionError(Reason.ENDPOINT_INVALID, "taken"), True, ("True/Hibernated", None)),
        (ConditionError(Reason.INTERNAL_ERROR, "no"), False, (None, None)),
    ],
)
def test_ended_is_hibernated_only_if_no_api_server_runs(
    failure: ConditionError | None, *, asleep: bool, expected: tuple[str | None, str | None]
) -> None:
    candidate = control_plane(sleep=True, told="False")
    outcome = ended(candidate, ASLEEP, published=True, asleep=asleep, failure=failure, waiting="")
    assert outcome.sleep == SLEEP
    assert words(outcome) == expected


def test_ended_is_empty_if_control_plane_is_unpublished() -> None:
    assert ended(control_plane(), ASLEEP, published=False, asleep=False, failure=STARTS) == Outcome(None)


def test_waking_control_plane_stays_ready_for_a_minute_only() -> None:
    def wakes(since: float, failure: ConditionError = STARTS) -> Outcome:
        candidate = control_plane(sleep=True, told="False", since=since)
        return ended(candidate, AWAKE, published=True, asleep=False, failure=failure)

    assert words(wakes(5)) == ("False/Waking", "Waking")
    assert words(wakes(61)) == (None, None)
    assert words(wakes(5, ConditionError(Reason.VERSION_NOT_ALLOWED, "no"))) == (None, None)
    # Registrations and gateway must treat the control plane as asleep until an API server answers.
    assert {wakes(5).sleep, wakes(61).sleep} == {SLEEP}


def test_ended_is_awake_after_a_wake_without_failure() -> None:
    outcome = ended(control_plane(sleep=True, told="False"), AWAKE, published=True, asleep=False, failure=None)
    assert (outcome.sleep, *words(outcome)) == (None, "False/Awake", None)


def test_ended_is_awake_if_a_published_control_plane_may_sleep() -> None:
    """The gateway needs the condition to report the use of the control plane, because it does not know the class."""
    outcome = ended(control_plane(), AWAKE, published=True, asleep=False, failure=None)
    assert (outcome.sleep, *words(outcome)) == (None, "False/Awake", None)
    decision = Decision(None, "spec.virtual.start is Always", always=True)
    assert ended(control_plane(), decision, published=True, asleep=False, failure=None) == Outcome(None)
    assert ended(control_plane(), AWAKE, published=False, asleep=False, failure=STARTS) == Outcome(None)


def test_ended_is_kept_awake_with_reason_if_it_cannot_sleep() -> None:
    decision = Decision(None, "flags decide", kept=True)
    outcome = ended(control_plane(), decision, published=True, asleep=False, failure=None)
    assert words(outcome) == ("False/KeptAwake", None)
    assert outcome.told is not None
    assert "flags decide" in outcome.told[2]
    # Despite other failures, clients must reach the API server that runs.
    failure_of_keys = ConditionError(Reason.KEYS_CHANGED, "other keys")
    candidate = control_plane(sleep=True, told="False")
    assert ended(candidate, decision, published=True, asleep=False, failure=failure_of_keys).sleep is None
    stuck_decision = Decision(None, "namespace shop is being deleted", kept=True, stuck=True)
    assert (
        words(ended(control_plane(), stuck_decision, published=True, asleep=False, failure=None))[0]
        == "False/NamespaceStuck"
    )


def test_ended_keeps_cause_of_stuck_namespace_during_sleep() -> None:
    sleep = SLEEP.model_copy(update={"stuck_namespace": "namespace shop is being deleted: Discovery failed"})
    outcome = ended(control_plane(sleep=True), Decision(sleep), published=True, asleep=True, failure=None)
    assert words(outcome) == ("True/NamespaceStuck", "Hibernated")
    assert outcome.told is not None
    assert outcome.told[2].startswith("at the beginning of this sleep, namespace shop is being deleted: Discovery f")
    assert "no API server runs" in outcome.told[2]
    # The gateway reads this reason.
    crowded = ended(control_plane(sleep=True), Decision(sleep, crowded=True), published=True, asleep=True, failure=None)
    assert words(crowded)[0] == "True/WaitsForRoom"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(Reason.KEPT_AWAKE, None), (Reason.NAMESPACE_STUCK, "False/Awake")],
)
def test_awake_replaces_namespace_stuck_but_not_kept_awake(reason: Reason, expected: str | None) -> None:
    candidate = control_plane(told="False")
    conditions = [condition.model_copy(update={"reason": reason}) for condition in candidate.status.conditions]
    candidate = candidate.model_copy(update={"status": candidate.status.model_copy(update={"conditions": conditions})})
    assert words(ended(candidate, AWAKE, published=True, asleep=False, failure=None))[0] == expected
