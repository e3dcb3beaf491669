"""First failures of a start: reported as waiting, and by their own reason once they last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from kplane.api import Condition, ControlPlane
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import check_ready, is_crashing, start_errors
from kplane.controlplane_operator.backends.prefix_claims import PrefixClaims
from kplane.controlplane_operator.controlplanes.first_tries import FirstTries
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.workloads import ComponentState, Phase, WorkloadsError

_KEY = ("", "acme")
_FULL = ConditionError(Reason.ETCD_UNAVAILABLE, "etcd: no space left on device")


class Clock:
    """Clock with a time that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def told(tries: FirstTries, clock: Clock, *times: float, failure: ConditionError = _FULL) -> list[Reason]:
    reasons = []
    for clock.now in times:
        reasons.append(tries.judge(_KEY, failure).reason)
    return reasons


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tries(clock: Clock) -> FirstTries:
    return FirstTries(clock=clock)


@pytest.mark.parametrize(
    ("times", "waits"), [((0, 0.5, 1.5, 3.5, 7.5, 15.5), 5), ((0, 20, 40, 60), 3)], ids=["quick", "slow"]
)
def test_judge_reports_own_reason_after_tries_and_time(
    tries: FirstTries, clock: Clock, times: tuple[float, ...], waits: int
) -> None:
    assert told(tries, clock, *times) == [Reason.PROVISIONING] * waits + [Reason.ETCD_UNAVAILABLE]


def test_judge_reports_refused_certificate_as_wait_at_first(tries: FirstTries, clock: Clock) -> None:
    refused = ConditionError(Reason.CERTIFICATE_INVALID, "certificate not signed by the CA of the kubeconfig")
    assert told(tries, clock, 0, 0.2, 1, 3, 11, failure=refused) == [Reason.BOOTSTRAPPING] * 4 + [
        Reason.CERTIFICATE_INVALID
    ]


def test_judge_keeps_message_of_failure(tries: FirstTries) -> None:
    assert tries.judge(_KEY, _FULL).message == _FULL.message


@pytest.mark.parametrize(
    "between",
    [
        ConditionError(Reason.PROVISIONING, "kube-apiserver is Starting"),
        ConditionError(Reason.START_FAILED, "kube-apiserver exited with 1"),
        None,
    ],
)
def test_judge_counts_from_zero_after_another_outcome(
    tries: FirstTries, clock: Clock, between: ConditionError | None
) -> None:
    told(tries, clock, 0, 1, 2)
    if between is None:
        tries.forget(_KEY)
    else:
        told(tries, clock, 3, failure=between)
    assert told(tries, clock, 20, 21, 22, 40) == [Reason.PROVISIONING] * 3 + [Reason.ETCD_UNAVAILABLE]


def test_judge_keeps_reason_that_status_already_has(tries: FirstTries) -> None:
    """Otherwise each change of leader would post two Events for each failing control plane."""
    ready = {"type": "Ready", "status": "False", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    same_condition, other_condition = (
        Condition.model_validate(ready | {"reason": reason}) for reason in (_FULL.reason, "Provisioning")
    )
    assert tries.judge(_KEY, _FULL, conditions=[same_condition]) is _FULL
    tries.forget(_KEY)
    assert tries.judge(_KEY, _FULL, conditions=[other_condition]).reason is Reason.PROVISIONING


def test_judge_counts_failures_of_each_control_plane_apart(tries: FirstTries, clock: Clock) -> None:
    told(tries, clock, 0, 5, 10, 15)
    assert tries.judge(("", "other"), _FULL).reason is Reason.PROVISIONING


def test_judge_reports_user_error_at_once(tries: FirstTries) -> None:
    typo = ConditionError(Reason.CLASS_NOT_FOUND, "no class")
    assert tries.judge(_KEY, typo) is typo


@pytest.mark.parametrize(
    ("error", "published", "reason"),
    [
        (KeyspaceError("etcd does not answer"), False, Reason.ETCD_UNAVAILABLE),
        (WorkloadsError("no space left on device"), False, Reason.START_FAILED),
        (KeyspaceError("etcd does not answer"), True, Reason.API_SERVER_NOT_READY),
        (WorkloadsError("no space left on device"), True, Reason.API_SERVER_NOT_READY),
    ],
)
def test_start_error_names_the_part_that_fails_until_published(
    error: Exception, published: bool, reason: Reason
) -> None:
    with pytest.raises(ConditionError) as caught, start_errors(published=published):
        raise error
    assert (caught.value.reason, caught.value.message) == (reason, str(error))


@pytest.mark.parametrize(
    ("phase", "restarts", "crashing"),
    [
        (Phase.STARTING, 0, False),
        (Phase.STARTING, 1, False),
        (Phase.STARTING, 2, True),
        (Phase.BACKOFF, 0, True),
        (Phase.ENDED, 0, True),
        (Phase.ABSENT, 0, False),
    ],
)
def test_is_crashing_after_two_restarts_backoff_or_exit(phase: Phase, restarts: int, crashing: bool) -> None:
    assert is_crashing(ComponentState(name="a", phase=phase, restarts=restarts)) is crashing


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ComponentState(name="a", phase=Phase.BACKOFF, message="exited with 1"), "StartFailed"),
        (ComponentState(name="a", phase=Phase.STARTING), "Provisioning"),
    ],
)
async def test_check_ready_reports_start_failed_only_for_crash(state: ComponentState, reason: str) -> None:
    runtime: Any = SimpleNamespace(state=lambda _: state)
    with pytest.raises(ConditionError) as caught:
        await check_ready(runtime, "a", what="kube-apiserver", published=False)
    assert (caught.value.reason, state.message in caught.value.message) == (reason, True)


async def test_prefix_claim_raises_etcd_unavailable_when_etcd_fails() -> None:
    keyspace = SimpleNamespace(claim=AsyncMock(side_effect=KeyspaceError("etcd: no space left on device")))
    access: Any = SimpleNamespace(is_granted=lambda _: False)
    shared: Any = SimpleNamespace(keyspace=keyspace)
    keys: Any = None
    acme = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
    with pytest.raises(ConditionError) as caught:
        await PrefixClaims(shared, keys=keys, access=access).claim(acme)
    assert (caught.value.reason, caught.value.message) == ("EtcdUnavailable", "etcd: no space left on device")
