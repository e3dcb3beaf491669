"""What a control plane must satisfy, and who gets a clusterPath that several want."""

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
def test_a_name_that_is_no_path_is_refused_with_the_way_out(name: str, reason: str) -> None:
    with pytest.raises(ConditionError, match=r"set spec\.virtual\.clusterPath") as refused:
        check_cluster_path(control_plane(name))
    assert refused.value.reason == reason


def test_a_clusterpath_makes_any_name_usable() -> None:
    check_cluster_path(control_plane("a.b", virtual={"clusterPath": "ab"}))


def test_a_path_under_which_data_lie_cannot_change() -> None:
    changed = control_plane("acme", status={"clusterPath": "old"}, virtual={"clusterPath": "new"})
    assert reason_of(check_cluster_path, changed) == "InvalidClusterPath"


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
def test_exactly_one_of_those_who_want_a_path_gets_it(claims: list[Claim]) -> None:
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
def test_the_same_path_elsewhere_is_no_conflict(claims: list[Claim], other: str) -> None:
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
    found = {obj["metadata"]["name"]: ControlPlane.model_validate(obj) for obj in objects}
    return AddressClaims(stores, address=lambda one: etcd_address(one.cluster_path)), found


def test_a_path_that_was_granted_stays_with_its_holder_though_an_older_one_turns_up() -> None:
    claims, found = claims_over(stored("young"), stored("old", age=60))
    young_first = found["young"]
    older_unseen, _ = claims_over(stored("young"))
    older_unseen.take(young_first)
    claims._granted.update(older_unseen._granted)
    claims.take(young_first)
    assert reason_of(claims.take, found["old"]) == "ClusterPathInUse"


def test_a_path_is_not_free_while_its_holder_is_being_deleted() -> None:
    claims, found = claims_over(stored("leaving", deleting=True, clusterPath="shared"), stored("next"))
    assert reason_of(claims.take, found["next"]) == "ClusterPathInUse"
    assert claims.holds(found["leaving"])


def test_one_that_never_got_the_path_does_not_hold_it_when_deleted() -> None:
    claims, found = claims_over(stored("holder", clusterPath="shared"), stored("loser", age=60, deleting=True))
    claims.take(found["holder"])
    assert claims.holds(found["holder"])
    assert not claims.holds(found["loser"])


def test_a_mode_that_the_class_forbids_is_refused() -> None:
    gold = ControlPlaneClass.model_validate({"metadata": {"name": "gold"}, "spec": {"modesAllowed": ["Dedicated"]}})
    wanting = control_plane(classRef={"name": "gold"})
    assert reason_of(check_class, wanting, chosen=gold) == "ModeNotAllowed"
    check_class(control_plane(classRef={"name": "gold"}, mode="Dedicated"), chosen=gold)
