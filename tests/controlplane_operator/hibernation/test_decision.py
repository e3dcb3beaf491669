"""Whether a control plane sleeps is decided by its object and its class, whatever was decided in between."""

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
from kplane.controlplane_operator.hibernation.decision import Decision, decide, idle_after, start_of
from kplane.controlplane_operator.hibernation.requests import Requests

NOW = datetime(2026, 11, 23, 12, 0, 0, 500_000, tzinfo=UTC)
PUBLISHED = {"endpoint": "https://acme"}


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
def test_only_an_api_server_that_kplane_runs_on_shared_data_starts_on_demand(
    spec: dict[str, Any], by_class: str | None, expected: str
) -> None:
    chosen = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"virtual": {"start": by_class}}})
    assert start_of(control_plane(spec=spec), chosen=chosen, gateway=None) == expected
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
def test_one_whose_only_address_is_the_gateway_starts_on_demand_by_default(
    spec: dict[str, Any], of_class: dict[str, Any], expected: str
) -> None:
    chosen = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": of_class})
    gateway = Gateway(url="https://api.example.org", ca=b"", namespace="kplane-gateway")
    assert start_of(control_plane(spec=spec), chosen=chosen, gateway=gateway) == expected


def test_a_class_says_how_long_one_may_be_idle() -> None:
    virtual = {"idle": {"after": "1h30m"}}
    chosen = ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {"virtual": virtual}})
    assert idle_after(chosen) == timedelta(minutes=90)
    assert idle_after(ControlPlaneClass.model_validate({"metadata": {"name": "c"}, "spec": {}})) is None
    assert idle_after(None) is None


def test_a_new_one_sleeps_unless_a_client_waits_for_it_already() -> None:
    sleep = decided(control_plane()).sleep
    assert sleep is not None
    assert (sleep.since, sleep.reason, sleep.observed_generation) == (NOW, HibernationReason.NOT_USED_YET, 3)
    assert decided(control_plane(**asked(-1))).sleep is None
    assert decided(control_plane(), start=StartPolicy.ALWAYS).sleep is None


def test_one_that_is_awake_stays_so() -> None:
    assert decided(control_plane(PUBLISHED)).sleep is None
    # Whether clients use it is not known, so it is not idle.
    for one in (control_plane(PUBLISHED), control_plane(woken(-900), **asked(-900))):
        assert decided(one, idle=timedelta(minutes=10)) == Decision(None, "it is in use")


def test_control_plane_that_was_never_used_is_idle_if_its_use_is_counted() -> None:
    for since, sleeps in ((-599, False), (-600, True)):
        one = control_plane(woken(since))
        found = decide(one, start=StartPolicy.ON_DEMAND, idle=timedelta(minutes=10), now=NOW, counted=True)
        assert (found.sleep is not None) is sleeps


@pytest.mark.parametrize(
    ("status", "annotations", "left"),
    [
        (PUBLISHED, {LAST_USED_ANNOTATION: at(-599)}, 1),
        (PUBLISHED, {LAST_USED_ANNOTATION: at(-601)}, None),
        (PUBLISHED, {LAST_USED_ANNOTATION: at(-900), WAKE_REQUESTED_ANNOTATION: at(-590)}, 10),
        (woken(-595), {LAST_USED_ANNOTATION: at(-900)}, 5),
        (woken(-600), {LAST_USED_ANNOTATION: at(-900)}, None),
    ],
)
def test_it_is_idle_so_long_after_the_last_use(
    status: dict[str, Any], annotations: dict[str, str], left: float | None
) -> None:
    decision = decided(control_plane(status, **annotations), idle=timedelta(minutes=10))
    if left is None:
        assert decision.sleep is not None
        assert (decision.sleep.reason, decision.sleep.since) == (HibernationReason.IDLE, NOW)
    else:
        assert (decision.sleep, decision.again) == (None, NOW + timedelta(seconds=left))
    assert decided(control_plane(status, **annotations)).sleep is None


def test_it_sleeps_by_a_request_that_is_the_latest_word() -> None:
    sleep = {SLEEP_REQUESTED_ANNOTATION: at(-10)}
    for one in (control_plane(PUBLISHED, **sleep), control_plane(woken(-11), **sleep, **asked(-11))):
        decision = decided(one)
        assert decision.sleep is not None
        assert decision.sleep.reason is HibernationReason.REQUESTED
    # A client is not asked.
    assert decided(control_plane(PUBLISHED, **sleep, **{LAST_USED_ANNOTATION: at(-1)})).sleep is not None
    for one in (control_plane(woken(-9), **sleep), control_plane(PUBLISHED, **sleep, **asked(-9))):
        assert decided(one).sleep is None
    always = control_plane(PUBLISHED, **sleep)
    assert decided(always, start=StartPolicy.ALWAYS).sleep is None
    assert not requests(always).refused
    (refused,) = requests(always, start=StartPolicy.ALWAYS).refused
    assert "OnDemand" in refused


def test_one_that_sleeps_does_so_until_something_wakes_it() -> None:
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
def test_what_wakes_it(status: dict[str, Any], annotations: dict[str, str], why: str) -> None:
    decision = decided(control_plane(status, **annotations))
    assert decision.sleep is None
    assert why in decision.why
    assert decided(control_plane(slept()), start=StartPolicy.ALWAYS).sleep is None


AT_HOME: dict[str, Any] = {"home": {"mode": "Virtual"}}
PLANNED: dict[str, Any] = {"mode": "Dedicated", "migration": {"plan": True}}


def test_sleeper_does_not_wake_for_plan_of_move() -> None:
    # As `kplane move --plan` leaves it: the settings of mode Virtual are set aside, by which it starts on demand.
    planned = control_plane(slept(generation=2) | AT_HOME, spec=PLANNED)
    assert start_of(planned, chosen=None, gateway=None) is StartPolicy.ON_DEMAND
    decision = decided(planned)
    assert decision.sleep == planned.status.hibernation
    # The operator has planned.
    migration = {"from": AT_HOME["home"], "to": {"mode": "Dedicated", "slot": 1}}
    planned = control_plane(slept(generation=2) | AT_HOME | {"migration": migration}, spec=PLANNED)
    assert decided(planned).sleep is not None


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
def test_planned_sleeper_wakes_for_request_move_or_change(
    spec: dict[str, Any], annotations: dict[str, str], why: str
) -> None:
    decision = decided(control_plane(slept(generation=2) | AT_HOME, spec=spec, **annotations))
    assert decision.sleep is None
    assert why in decision.why


def test_sleeper_does_not_wake_for_plan_of_move_that_only_its_class_asks_for() -> None:
    spec = {"classRef": {"name": "fast"}, "virtual": {"start": "OnDemand"}, "migration": {"plan": True}}
    elsewhere = {"virtual": {"dataStoreRef": {"name": "fast"}}}
    chosen = ControlPlaneClass.model_validate({"metadata": {"name": "fast"}, "spec": elsewhere})
    planned = control_plane(slept(generation=2) | AT_HOME, spec=spec)
    assert decide(planned, start=StartPolicy.ON_DEMAND, chosen=chosen, now=NOW).sleep == planned.status.hibernation
    # A class that starts API servers at once does so when the move is carried out.
    at_once = {"virtual": {"start": "Always", "dataStoreRef": {"name": "fast"}}}
    chosen = ControlPlaneClass.model_validate({"metadata": {"name": "fast"}, "spec": at_once})
    planned = control_plane(slept(generation=2) | AT_HOME, spec=spec | {"virtual": {}})
    assert start_of(planned, chosen=chosen, gateway=None) is StartPolicy.ON_DEMAND
    moved = control_plane(slept(generation=2) | AT_HOME, spec=spec | {"migration": {"plan": False}})
    assert decide(moved, start=StartPolicy.ON_DEMAND, chosen=chosen, now=NOW).sleep is None
    # The same spec by a class for the present home plans nothing.
    here = control_plane(slept(generation=2) | AT_HOME, spec=spec)
    assert decide(here, start=StartPolicy.ON_DEMAND, chosen=None, now=NOW).sleep is None


def test_awake_control_plane_is_not_made_to_start_on_demand_by_plan() -> None:
    assert start_of(control_plane(PUBLISHED | AT_HOME, spec=PLANNED), chosen=None, gateway=None) is StartPolicy.ALWAYS


def test_keys_that_are_being_rotated_keep_it_awake_until_that_is_done() -> None:
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
def test_a_time_that_cannot_be_one_is_refused_in_words(value: str, said: str) -> None:
    one = control_plane(slept(), **{WAKE_REQUESTED_ANNOTATION: value})
    assert decided(one).sleep is not None
    (refused,) = requests(one).refused
    assert WAKE_REQUESTED_ANNOTATION in refused
    assert said in refused


def test_times_are_read_as_other_programs_write_them() -> None:
    for value in ("2026-11-23T11:59:30Z", "2026-11-23T12:59:30.123456789+01:00"):
        wake = requests(control_plane(**{WAKE_REQUESTED_ANNOTATION: value})).wake
        assert wake is not None
        assert wake.replace(microsecond=0) == datetime(2026, 11, 23, 11, 59, 30, tzinfo=UTC)


DAYS = 2 * 86400


def test_sleep_that_began_in_the_future_ends_for_a_client_that_asks_now() -> None:
    asleep = slept(DAYS)
    assert decided(control_plane(asleep, **asked(-2))).sleep is None
    # A request of long ago is of an earlier sleep. The status takes up the corrected time, so later ones count.
    for noted in ({}, asked(-3600)):
        sleep = decided(control_plane(asleep, **noted)).sleep
        assert sleep is not None
        assert sleep.since < NOW


def test_wake_in_the_future_delays_no_sleep() -> None:
    idle = timedelta(minutes=10)
    awake = woken(DAYS)
    requested = control_plane(awake, **{SLEEP_REQUESTED_ANNOTATION: at(-1)})
    assert decided(requested).begins
    unused = control_plane(awake, **{LAST_USED_ANNOTATION: at(-700)})
    assert decided(unused, idle=idle).begins
    used = control_plane(awake, **{LAST_USED_ANNOTATION: at(-500)})
    assert decided(used, idle=idle).sleep is None


def test_wake_in_the_future_repeats_no_sleep_of_before() -> None:
    noted = {SLEEP_REQUESTED_ANNOTATION: at(-3600), LAST_USED_ANNOTATION: at(-10)}
    assert decided(control_plane(woken(DAYS), **noted)).sleep is None


def test_sleep_that_began_in_the_future_ends_when_something_inside_is_due_later() -> None:
    decision = decided(control_plane(slept(DAYS, nextWake=at(DAYS + 3600))))
    assert decision.sleep is None
    assert "clock" in decision.why
