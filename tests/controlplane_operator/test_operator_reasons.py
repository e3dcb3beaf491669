"""Reasons decide phases. Reasons are also labels of a metric, so their number is bounded."""

from __future__ import annotations

import pytest

from kplane.api import ControlPlanePhase
from kplane.api.reasons import Cause, Reason, reason_tables
from kplane.controlplane_operator.status.errors import ConditionError, tenant_error
from kplane.provider import NotFound, ProviderError, Unreachable
from kplane.provider.errors import AnswerTooLarge, Unauthorized

_FIRST = {ControlPlanePhase.PENDING, ControlPlanePhase.PROVISIONING}


@pytest.mark.parametrize("reason", Reason)
def test_phase_after_publication_is_never_pending_or_provisioning(reason: Reason) -> None:
    assert reason.phase(published=True) not in _FIRST


@pytest.mark.parametrize(
    ("reason", "first", "published"),
    [
        (Reason.RECONCILED, "Ready", "Ready"),
        (Reason.PROVISIONING, "Provisioning", "Unavailable"),
        (Reason.API_SERVER_NOT_READY, "Provisioning", "Unavailable"),
        (Reason.ENDPOINT_UNREACHABLE, "Provisioning", "Unavailable"),
        (Reason.CERTIFICATE_INVALID, "Provisioning", "Failed"),
        (Reason.CLASS_NOT_FOUND, "Pending", "Failed"),
        (Reason.CLUSTER_PATH_IN_USE, "Pending", "Failed"),
        (Reason.ROLE_NOT_FOUND, "Failed", "Failed"),
        (Reason.REVOKING_CREDENTIALS, "Terminating", "Terminating"),
        (Reason.HIBERNATED, "Hibernated", "Hibernated"),
        (Reason.FALLING_ASLEEP, "Ready", "Ready"),
        (Reason.WAKING, "Waking", "Waking"),
    ],
)
def test_phase_follows_from_reason_and_publication(reason: Reason, first: str, published: str) -> None:
    assert (reason.phase(published=False), reason.phase(published=True)) == (first, published)


@pytest.mark.parametrize("reason", [candidate for candidate in Reason if candidate.at_first is not None])
def test_failure_of_a_start_is_counted_and_its_wait_is_not(reason: Reason) -> None:
    waiting = reason.at_first
    assert waiting is not None
    assert (reason.expected, waiting.expected) == (False, True)
    assert waiting.transient
    # A failure that needs a person changes the phase of a published control plane only once it lasts.
    for published in (False, True) if reason.transient else (False,):
        assert reason.phase(published=published) is waiting.phase(published=published)


def test_failure_reason_exists_for_each_wait_that_may_hide_it() -> None:
    """A wait without a failure reason hides failures: its Event is no Warning, and no metric counts the wait."""
    failures = {reason.at_first for reason in Reason}
    assert {Reason.PROVISIONING, Reason.BOOTSTRAPPING, Reason.FALLING_ASLEEP, Reason.DELETING} <= failures


def test_mistake_of_a_user_is_no_fault_of_operator_or_machine() -> None:
    assert {Reason.CLASS_NOT_FOUND.cause, Reason.SPEC_INVALID.cause, Reason.CREDENTIALS_MISSING.cause} == {Cause.USER}
    faults = (Reason.ETCD_UNAVAILABLE, Reason.START_FAILED, Reason.INTERNAL_ERROR, Reason.DATA_LOST)
    assert {reason.cause for reason in faults} == {Cause.SYSTEM}


def test_wait_of_the_operator_is_no_mistake_of_a_user() -> None:
    transient = {reason for reason in Reason if reason.transient and reason.cause is Cause.USER}
    assert transient == set()


def test_each_reason_is_in_a_table_and_their_number_is_bounded() -> None:
    shown = "\n".join(reason_tables())
    assert {reason for reason in Reason if f"| `{reason}` |" not in shown} == set()
    assert len(Reason) <= 116


def test_waits_for_event_follows_reason_unless_overridden() -> None:
    assert ConditionError(Reason.CLASS_NOT_FOUND, "m").waits_for_event
    assert not ConditionError(Reason.FAILED, "m").waits_for_event
    assert ConditionError(Reason.ENDPOINT_INVALID, "m", waits_for_event=True).waits_for_event


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unreachable("m", kind="connect"), Reason.ENDPOINT_UNREACHABLE),
        (Unreachable("m", kind="tls", reason="CertificateInvalid"), Reason.CERTIFICATE_INVALID),
        (AnswerTooLarge("m"), Reason.ANSWER_TOO_LARGE),
        (Unauthorized(401, "Unauthorized", "m"), Reason.CREDENTIALS_REJECTED),
        (NotFound(404, "NotFound", "m"), Reason.BOOTSTRAP_FAILED),
    ],
)
def test_tenant_error_maps_client_errors_to_reasons(error: ProviderError, reason: Reason) -> None:
    assert tenant_error("https://acme", error).reason is reason
