"""Failures that pass are told as waits, and failures that last by their own reason."""

from __future__ import annotations

import pytest

from kplane.controlplane_operator.backends.base import is_crashing, start_errors
from kplane.controlplane_operator.controlplanes.first_tries import FirstTries
from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.workloads import ComponentState, Phase, WorkloadsError

_KEY = ("", "acme")
_FULL = ConditionError(Reason.ETCD_UNAVAILABLE, "etcd: no space left on device")


def told(tries: FirstTries, *times: float, failure: ConditionError = _FULL) -> list[Reason]:
    return [tries.judge(_KEY, failure, now=now).reason for now in times]


def test_failure_is_told_by_its_reason_after_tries_and_time() -> None:
    waits = Reason.PROVISIONING
    assert told(FirstTries(), 0, 0.5, 1.5, 3.5, 7.5, 15.5) == [waits] * 5 + [Reason.ETCD_UNAVAILABLE]
    assert told(FirstTries(), 0, 20, 40, 60) == [waits] * 3 + [Reason.ETCD_UNAVAILABLE]


def test_first_tries_keep_the_message_of_the_failure() -> None:
    assert FirstTries().judge(_KEY, _FULL, now=0).message == _FULL.message


@pytest.mark.parametrize(
    "between",
    [
        ConditionError(Reason.PROVISIONING, "kube-apiserver is Starting"),
        ConditionError(Reason.START_FAILED, "kube-apiserver exited with 1"),
        None,
    ],
)
def test_count_begins_anew_after_another_outcome(between: ConditionError | None) -> None:
    tries = FirstTries()
    told(tries, 0, 1, 2)
    if between is None:
        tries.forget(_KEY)
    else:
        told(tries, 3, failure=between)
    assert told(tries, 20, 21, 22, 40) == [Reason.PROVISIONING] * 3 + [Reason.ETCD_UNAVAILABLE]


def test_failures_of_one_control_plane_do_not_count_for_another() -> None:
    tries = FirstTries()
    told(tries, 0, 5, 10, 15)
    assert tries.judge(("", "other"), _FULL, now=16).reason is Reason.PROVISIONING


def test_failure_that_a_person_mends_is_told_at_once() -> None:
    typo = ConditionError(Reason.CLASS_NOT_FOUND, "no class")
    assert FirstTries().judge(_KEY, typo, now=0) is typo


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
def test_component_that_ends_by_itself_is_crashing(phase: Phase, restarts: int, crashing: bool) -> None:
    assert is_crashing(ComponentState(name="a", phase=phase, restarts=restarts)) is crashing
