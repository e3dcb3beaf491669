"""What a status says while a control plane falls asleep, sleeps and wakes."""

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
    told = f"{outcome.told[0]}/{outcome.told[1]}" if outcome.told is not None else None
    return told, outcome.ready[0] if outcome.ready is not None else None


def test_before_anything_ends_or_starts_the_status_says_so() -> None:
    falls = begun(control_plane(), ASLEEP)
    assert words(falls) == ("False/FallingAsleep", "FallingAsleep")
    assert falls is not None
    assert falls.sleep == SLEEP
    wakes = begun(control_plane(sleep=True, told="True"), AWAKE)
    assert words(wakes) == ("False/Waking", "Waking")
    assert wakes is not None
    assert wakes.sleep == SLEEP
    assert begun(control_plane(sleep=True, told="False"), ASLEEP) is None
    assert begun(control_plane(), AWAKE) is None
    new = ControlPlane.model_validate({"metadata": {"name": "acme"}, "spec": {}})
    assert begun(new, ASLEEP) is None


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
def test_it_is_hibernated_when_no_api_server_is_left(
    failure: ConditionError | None, *, asleep: bool, expected: tuple[str | None, str | None]
) -> None:
    one = control_plane(sleep=True, told="False")
    outcome = ended(one, ASLEEP, published=True, asleep=asleep, failure=failure, waiting="")
    assert outcome.sleep == SLEEP
    assert words(outcome) == expected


def test_one_that_could_not_be_published_says_nothing_of_its_sleep() -> None:
    assert ended(control_plane(), ASLEEP, published=False, asleep=False, failure=STARTS) == Outcome(None)


def test_it_stays_ready_while_it_wakes_and_not_for_ever() -> None:
    def wakes(since: float, failure: ConditionError = STARTS) -> Outcome:
        one = control_plane(sleep=True, told="False", since=since)
        return ended(one, AWAKE, published=True, asleep=False, failure=failure)

    assert words(wakes(5)) == ("False/Waking", "Waking")
    assert words(wakes(61)) == (None, None)
    assert words(wakes(5, ConditionError(Reason.VERSION_NOT_ALLOWED, "no"))) == (None, None)
    # Until an API server answers, registrations and gateway must not take it for awake.
    assert {wakes(5).sleep, wakes(61).sleep} == {SLEEP}


def test_it_is_awake_when_its_api_server_answered() -> None:
    outcome = ended(control_plane(sleep=True, told="False"), AWAKE, published=True, asleep=False, failure=None)
    assert (outcome.sleep, *words(outcome)) == (None, "False/Awake", None)


def test_one_that_may_sleep_says_that_it_is_awake() -> None:
    """The gateway reports its use then: it does not know what its class says."""
    awake = ended(control_plane(), AWAKE, published=True, asleep=False, failure=None)
    assert (awake.sleep, *words(awake)) == (None, "False/Awake", None)
    always = Decision(None, "spec.virtual.start is Always", always=True)
    assert ended(control_plane(), always, published=True, asleep=False, failure=None) == Outcome(None)
    assert ended(control_plane(), AWAKE, published=False, asleep=False, failure=STARTS) == Outcome(None)


def test_one_that_cannot_sleep_says_why() -> None:
    kept = Decision(None, "flags decide", kept=True)
    outcome = ended(control_plane(), kept, published=True, asleep=False, failure=None)
    assert words(outcome) == ("False/KeptAwake", None)
    assert outcome.told is not None
    assert "flags decide" in outcome.told[2]
    # Whatever fails besides, clients are to reach the API server that runs.
    keys = ConditionError(Reason.KEYS_CHANGED, "other keys")
    falling = control_plane(sleep=True, told="False")
    assert ended(falling, kept, published=True, asleep=False, failure=keys).sleep is None
    stuck = Decision(None, "namespace shop is being deleted", kept=True, stuck=True)
    assert words(ended(control_plane(), stuck, published=True, asleep=False, failure=None))[0] == "False/NamespaceStuck"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [(Reason.KEPT_AWAKE, None), (Reason.NAMESPACE_STUCK, "False/Awake")],
)
def test_stuck_namespace_is_not_told_when_it_keeps_nothing_awake(reason: Reason, expected: str | None) -> None:
    awake = control_plane(told="False")
    conditions = [each.model_copy(update={"reason": reason}) for each in awake.status.conditions]
    awake = awake.model_copy(update={"status": awake.status.model_copy(update={"conditions": conditions})})
    assert words(ended(awake, AWAKE, published=True, asleep=False, failure=None))[0] == expected
