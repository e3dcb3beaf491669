"""Decision whether a control plane sleeps, which depends only on its object, its class and the time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.api import ControlPlane, ControlPlaneClass, HibernationReason, StartPolicy
from kplane.api.names import (
    LAST_USED_ANNOTATION,
    ROTATE_ANNOTATION,
    SLEEP_REQUESTED_ANNOTATION,
    WAKE_REQUESTED_ANNOTATION,
)
from kplane.controlplane_operator.gateway import Gateway
from kplane.controlplane_operator.hibernation.decision import Decision, decide, idle_after, new_sleep, start_of
from kplane.controlplane_operator.hibernation.requests import Requests

NOW = datetime(2026, 11, 23, 12, 0, 0, 500_000, tzinfo=UTC)
PUBLISHED = {"endpoint": "https://acme"}
IDLE = timedelta(minutes=10)


def at(seconds: float) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat()


def slept(since: float = -60, *, generation: int = 3, **more: Any) -> dict[str, Any]:
    sleep = {"since": at(since), "reason": "NotUsedYet", "observedGeneration": generation, **more}
    return PUBLISHED | {"hibernation": sleep}


def control_plane(status: dict[str, Any] | None = None, *, spec: Any = None, **annotations: str) -> ControlPlane:
    metadata = {"name": "acme", "uid": "1", "generation": 3, "annotations": annotations}
    return ControlPlane.model_validate({"metadata": metadata, "spec": spec or {}, "status": status or {}})


def decided(of: ControlPlane, *, start: StartPolicy = StartPolicy.ON_DEMAND, idle: timedelta | None = None) -> Decision:
    return decide(of, start=start, idle=idle, now=NOW)


def requests(of: ControlPlane, *, start: StartPolicy = StartPolicy.ON_DEMAND) -> Requests:
    return Requests.of(of, start=start, now=NOW)


def asked(seconds: float) -> dict[str, str]:
    return {WAKE_REQUESTED_ANNOTATION: at(seconds)}


def woken(seconds: float) -> dict[str, Any]:
    condition = {"type": "Hibernated", "status": "False", "reason": "Awake", "message": ""}
    return PUBLISHED | {"conditions": [condition | {"lastTransitionTime": at(seconds)}]}


@pytest.mark.parametrize(
    ("spec", "by_class", "expected"),
    [
        ({}, None, "Always"),
        ({}, "OnDemand", "OnDemand"),
        ({"virtual": {"start": "OnDemand"}}, None, "OnDemand"),
        ({"virtual": {"start": "Always"}}, "OnDemand", "Always"),
        ({"virtual": {"clusterPath": "a"}}, "OnDemand", "OnDemand"),
        ({"mode": "Dedicated"}, "OnDemand", "Always"),
        ({"endpointRef": {"name": "theirs"}}, "OnDemand", "Always"),
    ],
)
def test_start_policy_applies_to_virtual_api_servers_of_kplane_only(
    spec: dict[str, Any], by_class: str | None, expected: str
) -> None:
    control_plane_class = ControlPlaneClass.model_validate(
        {"metadata": {"name": "c"}, "spec": {"virtual": {"start": by_class}}}
    )
    assert start_of(control_plane(spec=spec), chosen=control_plane_class, gateway=None) == expected
    if by_class is None:
        assert start_of(control_plane(spec=spec), chosen=None, gateway=None) == expected


@pytest.mark.parametrize(
    ("spec", "of_class", "expected"),
    [
        ({}, {}, "OnDemand"),
        ({"endpointStyle": "HostName"}, {}, "OnDemand"),
        ({"endpointPolicy": "Gateway"}, {"endpointPolicy": "Own"}, "OnDemand"),
        ({"endpointPolicy": "Both"}, {}, "Always"),
        ({}, {"endpointPolicy": "Own"}, "Always"),
        ({"virtual": {"start": "Always"}}, {}, "Always"),
        ({}, {"virtual": {"start": "Always"}}, "Always"),
        ({"mode": "Dedicated", "endpointPolicy": "Gateway"}, {}, "Always"),
        ({"endpointRef": {"name": "theirs"}}, {}, "Always"),
    ],
)
def test_start_is_on_demand_by_default_behind_gateway_only(
    spec: dict[str, Any], of_class: dict[str, Any], expected: str
) -> None:
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": of_class})
    gateway = Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway")
    assert start_of(control_plane(spec=spec), chosen=control_plane_class, gateway=gateway) == expected


def test_idle_after_returns_idle_time_of_class_or_none() -> None:
    virtual = {"idle": {"after": "1h30m"}}
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"virtual": virtual}})
    assert idle_after(control_plane_class) == timedelta(minutes=90)
    assert idle_after(ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {}})) is None
    assert idle_after(None) is None


def test_new_control_plane_sleeps_unless_a_client_asked_for_it() -> None:
    sleep = decided(control_plane()).sleep
    assert sleep is not None
    assert (sleep.since, sleep.reason, sleep.observed_generation) == (NOW, HibernationReason.NOT_USED_YET, 3)
    assert decided(control_plane(**asked(-1))).sleep is None
    assert decided(control_plane(), start=StartPolicy.ALWAYS).sleep is None


def test_awake_control_plane_stays_awake_if_its_use_is_unknown() -> None:
    assert decided(control_plane(PUBLISHED)).sleep is None
    # The last use is unknown, so that the control plane is not idle.
    for candidate in (control_plane(PUBLISHED), control_plane(woken(-900))):
        assert decided(candidate, idle=IDLE) == Decision(None, "it is in use")


@pytest.mark.parametrize("used", [{}, {LAST_USED_ANNOTATION: at(-185)}], ids=["never-used", "used-before"])
def test_requested_wake_without_use_ends_after_three_minutes(used: dict[str, str]) -> None:
    candidate = control_plane(woken(-179), **asked(-181), **used)
    assert decided(candidate, idle=IDLE) == Decision(None, "it is in use", again=NOW + timedelta(seconds=1))
    decision = decided(control_plane(woken(-180), **asked(-181), **used), idle=IDLE)
    assert decision.begins
    assert decision.sleep is not None
    assert decision.sleep.reason is HibernationReason.IDLE


def test_requested_wake_without_use_ends_after_shorter_idle_time() -> None:
    for since, sleeps in ((-119, False), (-120, True)):
        decision = decided(control_plane(woken(since), **asked(since)), idle=timedelta(minutes=2))
        assert (decision.sleep is not None) is sleeps


def test_requested_wake_with_later_use_counts_for_idle_time() -> None:
    used = {LAST_USED_ANNOTATION: at(-590)}
    decision = decided(control_plane(woken(-600), **asked(-601), **used), idle=IDLE)
    assert decision == Decision(None, "it is in use", again=NOW + timedelta(seconds=10))


def test_wake_request_for_awake_control_plane_shortens_no_idle_time() -> None:
    used = {LAST_USED_ANNOTATION: at(-400)}
    decision = decided(control_plane(woken(-900), **asked(-300), **used), idle=IDLE)
    assert decision == Decision(None, "it is in use", again=NOW + timedelta(seconds=200))


def test_time_of_unused_wake_starts_when_slow_start_ends() -> None:
    status = woken(-400)
    for since, sleeps in ((-179, False), (-180, True)):
        condition = {"type": "Ready", "status": "True", "reason": "Ready", "message": ""}
        ready = condition | {"lastTransitionTime": at(since)}
        candidate = control_plane(status | {"conditions": [*status["conditions"], ready]}, **asked(-400))
        assert (decided(candidate, idle=IDLE).sleep is not None) is sleeps


def test_requested_wake_counts_without_idle_time_or_gateway() -> None:
    candidate = control_plane(woken(-900), **asked(-900))
    assert decided(candidate) == Decision(None, "it is in use")
    decision = decide(candidate, start=StartPolicy.ON_DEMAND, idle=IDLE, now=NOW, reported=False)
    assert decision == Decision(None, "it is in use")


def test_unused_control_plane_is_idle_if_its_use_is_counted() -> None:
    for since, sleeps in ((-599, False), (-600, True)):
        candidate = control_plane(woken(since))
        decision = decide(candidate, start=StartPolicy.ON_DEMAND, idle=timedelta(minutes=10), now=NOW, counted=True)
        assert (decision.sleep is not None) is sleeps


@pytest.mark.parametrize(
    ("status", "annotations", "left"),
    [
        (PUBLISHED, {LAST_USED_ANNOTATION: at(-599)}, 1),
        (PUBLISHED, {LAST_USED_ANNOTATION: at(-601)}, None),
        (woken(-595), {LAST_USED_ANNOTATION: at(-900)}, 5),
        (woken(-600), {LAST_USED_ANNOTATION: at(-900)}, None),
    ],
)
def test_control_plane_is_idle_ten_minutes_after_use_or_wake(
    status: dict[str, Any], annotations: dict[str, str], left: float | None
) -> None:
    decision = decided(control_plane(status, **annotations), idle=timedelta(minutes=10))
    if left is None:
        assert decision.sleep is not None
        assert (decision.sleep.reason, decision.sleep.since) == (HibernationReason.IDLE, NOW)
    else:
        assert (decision.sleep, decision.again) == (None, NOW + timedelta(seconds=left))
    assert decided(control_plane(status, **annotations)).sleep is None


def test_sleep_request_counts_unless_older_than_wake_or_always() -> None:
    sleep = {SLEEP_REQUESTED_ANNOTATION: at(-10)}
    for candidate in (control_plane(PUBLISHED, **sleep), control_plane(woken(-11), **sleep, **asked(-11))):
        decision = decided(candidate)
        assert decision.sleep is not None
        assert decision.sleep.reason is HibernationReason.REQUESTED
    # A later use by a client does not count.
    assert decided(control_plane(PUBLISHED, **sleep, **{LAST_USED_ANNOTATION: at(-1)})).sleep is not None
    for candidate in (control_plane(woken(-9), **sleep), control_plane(PUBLISHED, **sleep, **asked(-9))):
        assert decided(candidate).sleep is None
    always = control_plane(PUBLISHED, **sleep)
    assert decided(always, start=StartPolicy.ALWAYS).sleep is None
    assert not requests(always).refused
    (message,) = requests(always, start=StartPolicy.ALWAYS).refused
    assert "OnDemand" in message


def test_sleep_continues_until_next_wake_without_new_request() -> None:
    decision = decided(control_plane(slept(nextWake=at(30)), **asked(-60)))
    assert decision.sleep == control_plane(slept(nextWake=at(30))).status.hibernation
    assert decision.again == NOW + timedelta(seconds=30)


@pytest.mark.parametrize(
    ("status", "annotations", "why"),
    [
        (slept(), asked(-59.9), "client"),
        (slept(generation=2), {}, "spec"),
        (slept(nextWake=at(0)), {}, "due"),
        (slept(), {ROTATE_ANNOTATION: "2026"}, "rotated"),
    ],
    ids=["request", "spec", "deadline", "rotation"],
)
def test_request_spec_due_time_rotation_or_policy_ends_sleep(
    status: dict[str, Any], annotations: dict[str, str], why: str
) -> None:
    decision = decided(control_plane(status, **annotations))
    assert decision.sleep is None
    assert why in decision.why
    assert decided(control_plane(slept()), start=StartPolicy.ALWAYS).sleep is None


AT_HOME: dict[str, Any] = {"home": {"mode": "Virtual"}}
PLANNED: dict[str, Any] = {"mode": "Dedicated", "migration": {"plan": True}}


def test_plan_of_move_does_not_end_sleep() -> None:
    # `kplane move --plan` sets aside the settings of mode Virtual, which include the start on demand.
    candidate = control_plane(slept(generation=2) | AT_HOME, spec=PLANNED)
    assert start_of(candidate, chosen=None, gateway=None) is StartPolicy.ON_DEMAND
    decision = decided(candidate)
    assert decision.sleep == candidate.status.hibernation
    # The operator has written the plan.
    migration = {"from": AT_HOME["home"], "to": {"mode": "Dedicated", "slot": 1}}
    candidate = control_plane(slept(generation=2) | AT_HOME | {"migration": migration}, spec=PLANNED)
    assert decided(candidate).sleep is not None


@pytest.mark.parametrize(
    ("spec", "annotations", "why"),
    [
        (PLANNED, asked(-59.9), "client"),
        (PLANNED | {"migration": {"plan": False}}, {}, "spec"),
        ({"mode": "Virtual", "migration": {"plan": False}}, {}, "spec"),
        ({"mode": "Virtual", "migration": {"plan": True}}, {}, "spec"),
    ],
    ids=["request", "move", "given-up", "nothing-planned"],
)
def test_sleep_with_plan_ends_on_request_move_or_other_change(
    spec: dict[str, Any], annotations: dict[str, str], why: str
) -> None:
    decision = decided(control_plane(slept(generation=2) | AT_HOME, spec=spec, **annotations))
    assert decision.sleep is None
    assert why in decision.why


SLEEPER: dict[str, Any] = {"classRef": {"name": "fast"}, "virtual": {"start": "OnDemand"}}


def asleep_with(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the status of a control plane that fell asleep with this spec, at an earlier generation."""
    sleep = new_sleep(control_plane(spec=spec), reason=HibernationReason.IDLE, now=NOW - timedelta(seconds=60))
    return PUBLISHED | AT_HOME | {"hibernation": sleep.model_copy(update={"observed_generation": 1})}


@pytest.mark.parametrize(
    "spec",
    [
        SLEEPER | {"mode": "Virtual", "migration": {"plan": False}},
        SLEEPER | {"virtual": {"start": "OnDemand", "clusterPath": "acme"}},
        {"classRef": {"name": "fast"}, "migration": {"rollbackWindow": "1h"}},
    ],
    ids=["given-up", "settings", "window"],
)
def test_end_of_plan_does_not_end_sleep(spec: dict[str, Any]) -> None:
    assert decided(control_plane(asleep_with(SLEEPER), spec=spec)).sleep is not None


@pytest.mark.parametrize(
    "spec",
    [
        SLEEPER | {"classRef": {"name": "other"}},
        SLEEPER | {"virtual": {"dataStoreRef": {"name": "pool-b"}}},
        SLEEPER | {"mode": "Dedicated", "virtual": None, "migration": {"plan": False}},
    ],
    ids=["another-field", "another-home", "move"],
)
def test_other_change_than_end_of_plan_ends_sleep(spec: dict[str, Any]) -> None:
    decision = decided(control_plane(asleep_with(SLEEPER), spec=spec))
    assert decision.sleep is None
    assert "spec" in decision.why


def test_change_made_during_plan_ends_sleep_with_the_plan() -> None:
    status = asleep_with(SLEEPER)
    changed = {"classRef": {"name": "other"}}
    assert decided(control_plane(status, spec=changed | PLANNED)).sleep is not None
    assert decided(control_plane(status, spec=changed)).sleep is None


def test_plan_of_move_by_class_does_not_end_sleep() -> None:
    spec = {"classRef": {"name": "fast"}, "virtual": {"start": "OnDemand"}, "migration": {"plan": True}}
    other_home = {"virtual": {"dataStoreRef": {"name": "fast"}}}
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "fast"}, "spec": other_home})
    candidate = control_plane(slept(generation=2) | AT_HOME, spec=spec)
    assert (
        decide(candidate, start=StartPolicy.ON_DEMAND, chosen=control_plane_class, now=NOW).sleep
        == candidate.status.hibernation
    )
    # Start policy Always of the class has an effect only when the move is carried out.
    at_once = {"virtual": {"start": "Always", "dataStoreRef": {"name": "fast"}}}
    control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "fast"}, "spec": at_once})
    candidate = control_plane(slept(generation=2) | AT_HOME, spec=spec | {"virtual": {}})
    assert start_of(candidate, chosen=control_plane_class, gateway=None) is StartPolicy.ON_DEMAND
    moved = control_plane(slept(generation=2) | AT_HOME, spec=spec | {"migration": {"plan": False}})
    assert decide(moved, start=StartPolicy.ON_DEMAND, chosen=control_plane_class, now=NOW).sleep is None
    # Without a class for another home, the same spec asks for no plan.
    same_home = control_plane(slept(generation=2) | AT_HOME, spec=spec)
    assert decide(same_home, start=StartPolicy.ON_DEMAND, chosen=None, now=NOW).sleep is None


def test_plan_of_move_keeps_start_always_of_awake_control_plane() -> None:
    assert start_of(control_plane(PUBLISHED | AT_HOME, spec=PLANNED), chosen=None, gateway=None) is StartPolicy.ALWAYS


def test_rotation_keeps_control_plane_awake_until_it_is_done() -> None:
    def rotation(phase: str) -> dict[str, Any]:
        times = {"startedAt": at(-9), "phaseStartedAt": at(-9)}
        return slept() | {"rotation": {"value": "2026", "phase": phase, **times}}

    assert decided(control_plane(rotation("Overlapping"), **{ROTATE_ANNOTATION: "2026"})).sleep is None
    assert decided(control_plane(rotation("Done"), **{ROTATE_ANNOTATION: "2026"})).sleep is not None
    assert decided(control_plane(rotation("Done"), **{ROTATE_ANNOTATION: "2027"})).sleep is None
    assert decided(control_plane(slept(), **{ROTATE_ANNOTATION: "x" * 64})).sleep is not None


@pytest.mark.parametrize(
    ("value", "said"),
    [("now", "give it a time"), ("2026-11-23T12:00:00", "with its zone"), (at(3600), "in the future"), ("", "a time")],
)
def test_invalid_request_time_is_ignored_with_explanation(value: str, said: str) -> None:
    candidate = control_plane(slept(), **{WAKE_REQUESTED_ANNOTATION: value})
    assert decided(candidate).sleep is not None
    (message,) = requests(candidate).refused
    assert WAKE_REQUESTED_ANNOTATION in message
    assert said in message


def test_request_times_with_z_or_nanoseconds_are_read() -> None:
    for value in ("2026-11-23T11:59:30Z", "2026-11-23T12:59:30.123456789+01:00"):
        wake = requests(control_plane(**{WAKE_REQUESTED_ANNOTATION: value})).wake
        assert wake is not None
        assert wake.replace(microsecond=0) == datetime(2026, 11, 23, 11, 59, 30, tzinfo=UTC)


DAYS = 2 * 86400


def test_sleep_with_future_start_ends_on_current_request() -> None:
    status = slept(DAYS)
    assert decided(control_plane(status, **asked(-2))).sleep is None
    # An old request belongs to an earlier sleep. The status gets a corrected time, so that later requests count.
    for notes in ({}, asked(-3600)):
        sleep = decided(control_plane(status, **notes)).sleep
        assert sleep is not None
        assert sleep.since < NOW


def test_wake_time_in_the_future_delays_no_sleep() -> None:
    idle = timedelta(minutes=10)
    status = woken(DAYS)
    requested = control_plane(status, **{SLEEP_REQUESTED_ANNOTATION: at(-1)})
    assert decided(requested).begins
    unused = control_plane(status, **{LAST_USED_ANNOTATION: at(-700)})
    assert decided(unused, idle=idle).begins
    used = control_plane(status, **{LAST_USED_ANNOTATION: at(-500)})
    assert decided(used, idle=idle).sleep is None


def test_wake_time_in_the_future_revives_no_old_sleep_request() -> None:
    notes = {SLEEP_REQUESTED_ANNOTATION: at(-3600), LAST_USED_ANNOTATION: at(-10)}
    assert decided(control_plane(woken(DAYS), **notes)).sleep is None


def test_sleep_with_future_start_ends_if_next_wake_is_later() -> None:
    decision = decided(control_plane(slept(DAYS, nextWake=at(DAYS + 3600))))
    assert decision.sleep is None
    assert "clock" in decision.why
