"""Who holds a clusterPath, and so whose data is removed with it."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.names import CLUSTER_PATH_ANNOTATION, CONTROL_PLANE_LABEL, MODE_ANNOTATION, RETAINED_UID_ANNOTATION
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.addresses import etcd_address
from kplane.controlplane_operator.watch.event_routing import connect
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores


def in_etcd(control_plane: ControlPlane) -> str:
    return etcd_address(control_plane.status.cluster_path or control_plane.cluster_path)


def stored(stores: Stores, name: str, version: int, *, path: str, granted: str | None, **metadata: Any) -> ControlPlane:
    obj = {
        "metadata": {"name": name, "uid": name, "resourceVersion": str(version), **metadata},
        "spec": {"virtual": {"clusterPath": path}},
        "status": {"clusterPath": granted} if granted else {},
    }
    stores.control_planes.apply(obj)
    return ControlPlane.model_validate(obj)


def test_a_path_stays_its_holders_where_the_spec_was_edited_before_the_grant_was_written_down() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    edited = stored(
        stores, "edited", 1, path="second", granted="first", deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["f"]
    )
    assert claims.holds(edited)
    late = stored(stores, "late", 2, path="first", granted=None)
    with pytest.raises(ConditionError, match="in use by control plane edited"):
        claims.take(late)
    assert not claims.holds(late)


def recorded(stores: Stores, name: str, version: int, *, path: str, created: str, **metadata: Any) -> None:
    """Have a namespace say that data of a control plane, whose uid is its name too, lie under a path."""
    annotations = {RETAINED_UID_ANNOTATION: name, MODE_ANNOTATION: "Virtual", CLUSTER_PATH_ANNOTATION: path}
    stores.namespaces.apply(
        {
            "metadata": {
                "name": f"kplane-cp-{name}",
                "labels": {CONTROL_PLANE_LABEL: name},
                "annotations": annotations,
                "resourceVersion": str(version),
                "creationTimestamp": created,
                **metadata,
            }
        }
    )


def test_a_path_under_which_retained_data_lie_is_nobody_elses() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    recorded(stores, "gone", 1, path="taken", created="2026-01-01T00:00:00Z")
    late = stored(stores, "late", 2, path="taken", granted=None, creationTimestamp="2026-01-02T00:00:00Z")
    with pytest.raises(ConditionError, match="what control plane gone left, as namespace kplane-cp-gone") as told:
        claims.take(late)
    assert told.value.reason == "DataRetained"
    # Even where it was granted by mistake.
    begun = stored(stores, "late", 3, path="taken", granted="taken", creationTimestamp="2026-01-02T00:00:00Z")
    assert not claims.holds(begun)
    claims.take(stored(stores, "elsewhere", 5, path="other", granted=None))
    recorded(stores, "gone", 6, path="taken", created="2026-01-01T00:00:00Z", deletionTimestamp="2026-01-03T00:00:00Z")
    claims.take(begun)


def test_a_control_plane_of_the_name_in_the_record_may_ask_for_adoption() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    recorded(stores, "gone", 1, path="taken", created="2026-01-01T00:00:00Z")
    claims.take(stored(stores, "gone", 2, path="taken", granted=None, uid="heir"))


def test_a_record_that_came_later_takes_nothing_from_who_holds_the_path() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    holder = stored(stores, "holder", 1, path="held", granted="held", creationTimestamp="2026-01-01T00:00:00Z")
    recorded(stores, "forged", 2, path="held", created="2026-01-02T00:00:00Z")
    claims.take(holder)
    assert claims.holds(holder)


def test_two_records_of_a_path_give_it_to_nobody() -> None:
    """Else who forges one for a path that another one's data lie under would adopt these."""
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    recorded(stores, "real", 1, path="wanted", created="2026-01-01T00:00:00Z")
    recorded(stores, "forged", 2, path="wanted", created="2026-01-02T00:00:00Z")
    forger = stored(stores, "forged", 3, path="wanted", granted=None, creationTimestamp="2026-01-03T00:00:00Z")
    with pytest.raises(ConditionError, match="what control plane real left"):
        claims.take(forger)


def test_a_waiting_control_plane_is_looked_at_when_the_record_of_its_path_changes() -> None:
    stores, queues = Stores(), Queues()
    stored(stores, "waiting", 1, path="taken", granted=None)
    recorded(stores, "gone", 2, path="taken", created="2026-01-01T00:00:00Z")
    connect(stores, queues=queues)
    [gone] = stores.namespaces
    stores.namespaces.remove(gone)
    assert len(queues.control_planes) == 1
