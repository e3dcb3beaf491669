"""Validation of class and clusterPath of a control plane, and precedence among claims of the same path."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.api import ControlPlane, ControlPlaneClass
from kplane.controlplane_operator.class_policy import check_class, check_cluster_path
from kplane.controlplane_operator.controlplanes.claims import AddressClaims, Claim, check_unclaimed
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.addresses import etcd_address
from kplane.controlplane_operator.watch.stores import Stores

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def control_plane(name: str = "acme", *, status: dict[str, Any] | None = None, **spec: Any) -> ControlPlane:
    return ControlPlane.model_validate(
        {"metadata": {"name": name, "uid": f"uid-{name}", "generation": 1}, "spec": spec, "status": status or {}}
    )


def reason_of(check: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConditionError) as refused:
        check(*args, **kwargs)
    return refused.value.reason


@pytest.mark.parametrize(
    ("name", "reason"),
    [("root", "ClusterPathReserved"), ("clusters", "ClusterPathReserved"), ("a.b", "InvalidClusterPath"),
     ("a" * 64, "InvalidClusterPath")],
)  # fmt: skip
def test_check_cluster_path_refuses_invalid_name_with_remedy(name: str, reason: str) -> None:
    with pytest.raises(ConditionError, match=r"set spec\.virtual\.clusterPath") as refused:
        check_cluster_path(control_plane(name))
    assert refused.value.reason == reason


def test_check_cluster_path_allows_any_name_with_cluster_path() -> None:
    check_cluster_path(control_plane("a.b", virtual={"clusterPath": "ab"}))


def test_check_cluster_path_refuses_change_of_granted_path() -> None:
    acme = control_plane("acme", status={"clusterPath": "old"}, virtual={"clusterPath": "new"})
    assert reason_of(check_cluster_path, acme) == "InvalidClusterPath"


_CLAIMS = st.lists(
    st.builds(
        lambda number, age, held: Claim(
            name=f"cp-{number}",
            uid=f"uid-{number}",
            address=etcd_address("acme"),
            cluster_path="acme",
            held=held,
            created=_EPOCH + timedelta(seconds=age),
        ),
        number=st.integers(0, 1000),
        age=st.integers(0, 3),
        held=st.booleans(),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda claim: claim.uid,
)


@given(claims=_CLAIMS)
def test_exactly_one_claim_of_a_path_is_granted(claims: list[Claim]) -> None:
    granted = []
    for claim in claims:
        try:
            check_unclaimed(claim, others=claims)
            granted.append(claim)
        except ConditionError as failure:
            assert failure.reason == "ClusterPathInUse"  # noqa: PT017 - most of them are refused, that is the point
    assert granted == [min(claims, key=lambda claim: (not claim.held, claim.created, claim.uid))]


@given(
    claims=_CLAIMS, other=st.sampled_from([etcd_address("acm"), "https://elsewhere:443/clusters/acme/control-plane"])
)
def test_claim_of_same_path_at_other_address_is_granted(claims: list[Claim], other: str) -> None:
    alone = Claim(name="x", uid="x", address=other, cluster_path="acme", held=False, created=_EPOCH + timedelta(days=1))
    check_unclaimed(alone, others=claims)


def stored(name: str, *, age: int = 0, deleting: bool = False, **status: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "creationTimestamp": (_EPOCH - timedelta(seconds=age)).isoformat(),
    }
    if deleting:
        metadata["deletionTimestamp"] = _EPOCH.isoformat()
    return {"metadata": metadata, "spec": {"virtual": {"clusterPath": "shared"}}, "status": status}


def claims_over(*objects: dict[str, Any]) -> tuple[AddressClaims, dict[str, ControlPlane]]:
    stores = Stores()
    for obj in objects:
        stores.control_planes.apply(obj)
    control_planes = {obj["metadata"]["name"]: ControlPlane.model_validate(obj) for obj in objects}
    return AddressClaims(stores, address=lambda one: etcd_address(one.cluster_path)), control_planes


def test_granted_path_stays_with_holder_when_older_claim_appears() -> None:
    claims, control_planes = claims_over(stored("young"), stored("old", age=60))
    young_first = control_planes["young"]
    older_unseen, _ = claims_over(stored("young"))
    older_unseen.take(young_first)
    claims._granted.update(older_unseen._granted)
    claims.take(young_first)
    assert reason_of(claims.take, control_planes["old"]) == "ClusterPathInUse"


def test_path_stays_taken_while_holder_is_being_deleted() -> None:
    claims, control_planes = claims_over(stored("leaving", deleting=True, clusterPath="shared"), stored("next"))
    assert reason_of(claims.take, control_planes["next"]) == "ClusterPathInUse"
    assert claims.holds(control_planes["leaving"])


def test_deleted_control_plane_without_grant_does_not_hold_path() -> None:
    claims, control_planes = claims_over(stored("holder", clusterPath="shared"), stored("loser", age=60, deleting=True))
    claims.take(control_planes["holder"])
    assert claims.holds(control_planes["holder"])
    assert not claims.holds(control_planes["loser"])


def test_check_class_refuses_mode_that_class_forbids() -> None:
    gold = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": {"modesAllowed": ["Dedicated"]}})
    acme = control_plane(classRef={"name": "gold"})
    assert reason_of(check_class, acme, chosen=gold) == "ModeNotAllowed"
    check_class(control_plane(classRef={"name": "gold"}, mode="Dedicated"), chosen=gold)
