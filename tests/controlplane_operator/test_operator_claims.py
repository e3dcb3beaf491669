"""Claims of clusterPaths: the holder of a path is the control plane whose data are removed with it."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.names import CLUSTER_PATH_ANNOTATION, CONTROL_PLANE_LABEL, MODE_ANNOTATION, RETAINED_UID_ANNOTATION
from kplane.controlplane_operator.controlplanes.claims import AddressClaims
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.addresses import etcd_address
from kplane.controlplane_operator.watch.stores import Stores

from .watched import Watched


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


def test_granted_path_stays_with_holder_after_spec_edit() -> None:
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
    """Store a namespace that records retained data of a control plane under a path. The uid equals the name."""
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


def test_take_refuses_path_with_retained_data() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    recorded(stores, "gone", 1, path="taken", created="2026-01-01T00:00:00Z")
    late = stored(stores, "late", 2, path="taken", granted=None, creationTimestamp="2026-01-02T00:00:00Z")
    with pytest.raises(ConditionError, match="what control plane gone left, as namespace kplane-cp-gone") as refusal:
        claims.take(late)
    assert refusal.value.reason == "DataRetained"
    # The refusal also covers a path that was granted by mistake.
    granted = stored(stores, "late", 3, path="taken", granted="taken", creationTimestamp="2026-01-02T00:00:00Z")
    assert not claims.holds(granted)
    claims.take(stored(stores, "elsewhere", 5, path="other", granted=None))
    recorded(stores, "gone", 6, path="taken", created="2026-01-01T00:00:00Z", deletionTimestamp="2026-01-03T00:00:00Z")
    claims.take(granted)


def test_take_allows_control_plane_named_in_the_record() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    recorded(stores, "gone", 1, path="taken", created="2026-01-01T00:00:00Z")
    claims.take(stored(stores, "gone", 2, path="taken", granted=None, uid="heir"))


def test_later_record_does_not_displace_path_holder() -> None:
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    holder = stored(stores, "holder", 1, path="held", granted="held", creationTimestamp="2026-01-01T00:00:00Z")
    recorded(stores, "forged", 2, path="held", created="2026-01-02T00:00:00Z")
    claims.take(holder)
    assert claims.holds(holder)


def test_take_refuses_path_with_two_records() -> None:
    """Otherwise a forged record could adopt the data of another control plane."""
    stores = Stores()
    claims = AddressClaims(stores, address=in_etcd)
    recorded(stores, "real", 1, path="wanted", created="2026-01-01T00:00:00Z")
    recorded(stores, "forged", 2, path="wanted", created="2026-01-02T00:00:00Z")
    forger = stored(stores, "forged", 3, path="wanted", granted=None, creationTimestamp="2026-01-03T00:00:00Z")
    with pytest.raises(ConditionError, match="what control plane real left"):
        claims.take(forger)


def test_deleted_record_enqueues_control_plane_that_waits_for_path() -> None:
    stores = Stores()
    stored(stores, "waiting", 1, path="taken", granted=None)
    recorded(stores, "gone", 2, path="taken", created="2026-01-01T00:00:00Z")
    watched = Watched(stores)
    [namespace] = stores.namespaces
    stores.namespaces.remove(namespace)
    assert len(watched.names("controlplane")) == 1
