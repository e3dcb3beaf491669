"""Service claims: the set of registrations decides which registration holds a service, in any order of events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import ControlPlane, ControlPlaneClass, ControlPlaneRegistration, Service
from kplane.api.names import PAUSED_ANNOTATION
from kplane.controlplane_operator.registrations.service_claims import (
    ServiceClaim,
    check_services,
    default_services,
    holders,
    may_run,
)
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialRegistration
from kplane.controlplane_operator.watch.stores import Stores

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def claims(draw: st.DrawFn) -> list[ServiceClaim]:
    uids = draw(st.lists(st.text("abc", min_size=1, max_size=3), unique=True, max_size=8))
    return [
        ServiceClaim(
            f"registration-{uid}",
            uid,
            # Several claims have the same second, as `kubectl apply -f` creates registrations.
            _BEGIN + timedelta(seconds=draw(st.integers(0, 3))),
            draw(st.frozensets(st.sampled_from(Service))),
            draw(st.booleans()),
            draw(st.booleans()),
        )
        for uid in uids
    ]


@given(claims(), st.randoms())
def test_holders_are_independent_of_claim_order(given_claims: list[ServiceClaim], random: Any) -> None:
    shuffled = list(given_claims)
    random.shuffle(shuffled)
    assert holders(shuffled) == holders(given_claims)


@given(claims())
def test_claim_gets_all_services_unless_older_claim_holds_any(given_claims: list[ServiceClaim]) -> None:
    held = holders(given_claims)
    for claim in given_claims:
        mine = {service for service, holder in held.items() if holder == claim}
        assert mine in (set(), set(claim.services))
        if mine != claim.services:
            assert any(held[service].precedence < claim.precedence for service in claim.services & held.keys())


@given(claims())
def test_oldest_claim_gets_all_its_services(given_claims: list[ServiceClaim]) -> None:
    if given_claims:
        oldest = min(given_claims, key=lambda each: (each.created, each.refused, not each.served, each.uid))
        assert all(holders(given_claims)[service] == oldest for service in oldest.services)


@given(claims())
def test_losing_or_younger_claim_changes_no_other_holder(
    given_claims: list[ServiceClaim],
) -> None:
    held = holders(given_claims)
    for claim in given_claims:
        without = holders(other for other in given_claims if other != claim)
        if claim not in held.values():
            assert without == held
        older = [other for other in given_claims if other.precedence < claim.precedence]
        assert holders(older).items() <= holders([*older, claim]).items()


def registration(
    name: str, *, created: int = 0, asks: tuple[str, ...] = ("Controllers",), **fields: Any
) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1"}
    metadata["creationTimestamp"] = (_BEGIN + timedelta(seconds=created)).isoformat()
    spec = {"controlPlaneRef": {"name": "cp"}, "services": list(asks), **fields.pop("spec", {})}
    return {"metadata": metadata | fields.pop("metadata", {}), "spec": spec, "status": fields}


def refusal(own: dict[str, Any], *others: dict[str, Any], claiming: bool = True) -> str:
    """Return reason and message of the refusal to run beside others, or an empty text."""
    claimed = [ControlPlaneRegistration.model_validate(obj) for obj in others] if claiming else []
    try:
        check_services(
            ControlPlaneRegistration.model_validate(own),
            control_plane_uid="uid-cp",
            claims=[
                ServiceClaim.of(candidate, services=candidate.spec.services, control_plane_uid="uid-cp")
                for candidate in claimed
            ],
            others=[PartialRegistration.of(obj) for obj in (own, *others)],
        )
    except ConditionError as error:
        return f"{error.reason}: {error.message}"
    return ""


RESOLVED: dict[str, Any] = {"ready": True, "controlPlaneUID": "uid-cp", "services": ["Controllers"]}


def test_younger_registration_is_refused_with_holder_and_remedy() -> None:
    elder, younger = registration("elder"), registration("younger", created=1)
    assert refusal(elder, younger) == ""
    message = refusal(younger, elder)
    assert message == (
        "ServiceTaken: registration elder, which is older, has Controllers of control plane cp; delete one of the two,"
        " or remove Controllers from spec.services of one"
    )
    assert refusal(registration("other", created=2, asks=("Scheduler",)), elder, younger) == ""


def test_served_registration_wins_against_claim_of_same_second() -> None:
    # By uid, "first" comes before "second".
    first, second = registration("first"), registration("second", **RESOLVED)
    assert refusal(second, first) == ""
    message = refusal(first, second)
    assert "registration second, which was created in the same second and has it already, has Controllers" in message
    # A service of another control plane, or another service, gives no precedence.
    for status in (RESOLVED | {"controlPlaneUID": "uid-another"}, RESOLVED | {"services": ["Scheduler"]}):
        second = registration("second", **status)
        assert refusal(first, second, claiming=True) == ""
        message = refusal(second, first)
        assert "registration first, which was created in the same second, has Controllers" in message
    assert "older" not in message


@pytest.mark.parametrize("reason", ["Hibernated", "Migrating", "EndpointPending"])
def test_refused_registration_stays_refused_while_none_is_served(reason: str) -> None:
    # By uid, "first" comes before "second". The status of a registration that waits names no control plane.
    waiting: dict[str, Any] = {"ready": False, "services": ["Controllers"]}
    first = registration("first", **waiting, **condition("ServiceTaken"))
    second = registration("second", **waiting, **condition(reason))
    assert refusal(second, first) == ""
    message = refusal(first, second)
    assert "registration second, which was created in the same second and has it already, has Controllers" in message
    # Once the second one is gone, the first one is free. An older registration is never refused for a younger one.
    assert refusal(first) == ""
    assert refusal(first, registration("second", created=1)) == ""


def test_waiting_registration_does_not_block_its_other_services() -> None:
    first = registration("first")
    waiting = registration("waiting", created=1, asks=("Controllers", "Scheduler"))
    last = registration("last", created=2, asks=("Scheduler",))
    assert "registration first" in refusal(waiting, first, last)
    assert refusal(last, first, waiting) == ""


@pytest.mark.parametrize(
    "left",
    [
        RESOLVED,
        {"instance": {"controlPlaneUID": "uid-cp", "services": ["Controllers"]}},
        # The instance of an mcm that does not report its services.
        {"instance": {"controlPlaneUID": "uid-cp"}},
    ],
)
def test_next_registration_waits_until_former_instance_has_ended(left: dict[str, Any]) -> None:
    former, following = registration("former", created=1, **left), registration("following")
    assert refusal(following, former, claiming=False) == (
        "ServiceTaken: registration former runs Controllers for control plane cp still; wait until that has ended"
    )
    paused = {"annotations": {PAUSED_ANNOTATION: "true"}}
    former["metadata"] |= paused
    assert refusal(following, former, claiming=False).endswith("is paused; remove that annotation")
    elsewhere: list[dict[str, Any]] = [
        {},
        {"instance": {"controlPlaneUID": "uid-another"}},
        RESOLVED | {"controlPlaneUID": "uid-another"},
    ]
    for over in elsewhere:
        assert refusal(following, registration("former", created=1, **over), claiming=False) == ""
    scheduler: dict[str, Any] = {"instance": {"controlPlaneUID": "uid-cp", "services": ["Scheduler"]}}
    assert refusal(following, registration("former", created=1, **scheduler), claiming=False) == ""


def test_elder_keeps_running_beside_younger_that_runs_already() -> None:
    elder = registration("elder", **RESOLVED)
    younger = registration("younger", created=1, **RESOLVED)
    assert refusal(elder, younger) == ""
    assert refusal(younger, elder) != ""


def test_may_run_is_union_of_status_and_instance_services() -> None:
    both = PartialRegistration.of(
        registration("any", **RESOLVED, instance={"controlPlaneUID": "uid-cp", "services": ["Scheduler"]})
    )
    assert may_run(both, control_plane_uid="uid-cp") == {Service.CONTROLLERS, Service.SCHEDULER}
    assert may_run(both, control_plane_uid="uid-another") == frozenset()


def condition(reason: str) -> dict[str, Any]:
    since = "2026-01-01T00:00:00Z"
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": since}
    return {"conditions": [ready]}


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        ([], ["Controllers", "Scheduler"]),
        ([registration("mine")], ["Scheduler"]),
        ([registration("mine", asks=("Controllers", "Scheduler"))], []),
        ([registration("mine", asks=())], ["Controllers", "Scheduler"]),
        # A registration that waits for the control plane will provide the service.
        ([registration("mine", **condition("EndpointPending"))], ["Scheduler"]),
        ([registration("mine", **condition("ServiceTaken")), registration("other")], ["Scheduler"]),
        # A registration that is refused or deleted does not replace the default.
        ([registration("mine", **condition("SecretNotAllowed"))], ["Controllers", "Scheduler"]),
        ([registration("mine", **condition("EndpointPending"), spec={"endpointRef": {"name": "never"}})], None),
        ([registration("mine", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})], None),
        ([registration("mine", metadata={"annotations": {PAUSED_ANNOTATION: "true"}})], None),
        ([registration("mine", metadata={"annotations": {PAUSED_ANNOTATION: "true"}}, **RESOLVED)], ["Scheduler"]),
        ([registration("mine", spec={"controlPlaneRef": {"name": "another"}})], None),
        ([registration("mine", spec={"mode": "Unheard"})], None),
    ],
)
def test_default_services_are_services_without_other_provider(
    present: list[dict[str, Any]], wanted: list[str] | None
) -> None:
    stores = Stores()
    for obj in present:
        stores.registrations.apply(obj)
    services = default_services(
        ControlPlane.model_validate({"metadata": {"name": "cp", "uid": "uid-cp"}, "spec": {}}),
        chosen=ControlPlaneClass.model_validate(
            {"metadata": {"name": "any"}, "spec": {"defaultServices": ["Controllers", "Scheduler"]}}
        ),
        stores=stores,
    )
    assert services == (["Controllers", "Scheduler"] if wanted is None else wanted)
