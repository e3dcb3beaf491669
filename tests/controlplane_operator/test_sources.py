"""Data of a new control plane: the source decides once, by a snapshot or by a running control plane."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes.restored import restore_status, restored_service_cidr
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores

SNAPSHOT = {"snapshotRef": {"name": "before"}, "identitySecretRef": {"name": "key"}}
LIVING = {"controlPlaneRef": {"name": "acme"}, "clone": True}
READY = {"endpoint": "https://acme:6443", "version": "v1.36.3", "serviceCIDR": "10.3.0.0/16"}


def stored(name: str, *, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1"},
        "spec": spec or {},
        "status": status or {},
    }


def saved(name: str = "before", **status: Any) -> dict[str, Any]:
    whole = {
        "phase": "Completed",
        "location": "file",
        "sha256": "hash",
        "revision": 7,
        "controlPlaneUID": "uid-of-acme",
        "kubernetesVersion": "v1.36.3",
        "serviceCIDR": "10.3.0.0/16",
    }
    return stored(name, spec={"controlPlaneRef": {"name": "acme"}}, status=whole | status)


def stores(
    *,
    snapshot: dict[str, Any] | None = None,
    later: dict[str, Any] | None = None,
    original: dict[str, Any] | None = None,
) -> Stores:
    filled = Stores()
    for obj in (snapshot, later):
        if obj is not None:
            filled.snapshots.apply(obj)
    if original is not None:
        filled.control_planes.apply(original)
    return filled


def new(source: dict[str, Any], *, mode: str = "Virtual", data_store: str | None = None) -> ControlPlane:
    virtual = {"virtual": {"dataStoreRef": {"name": data_store}}} if data_store is not None else {}
    return ControlPlane.model_validate(stored("copy", spec={"mode": mode, "source": source, **virtual}))


@pytest.mark.parametrize(
    ("former", "mode", "begins_at"),
    [
        ("Virtual", "Virtual", 100_007),
        ("Dedicated", "Virtual", 100_007),
        ("Virtual", "Dedicated", 1_000_000_007),
        ("Dedicated", "Dedicated", 1_000_000_007),
    ],
)
def test_restore_begins_far_above_snapshot_without_highest_revision(former: str, mode: str, begins_at: int) -> None:
    filled_stores = stores(snapshot=saved(mode=former))
    restore = restore_status(new(SNAPSHOT, mode=mode), stores=filled_stores)
    assert restore is not None
    assert (restore.location, restore.control_plane_uid, restore.begins_at) == ("file", "uid-of-acme", begins_at)
    assert restored_service_cidr(new(SNAPSHOT), stores=filled_stores) == "10.3.0.0/16"
    # A clone has no clients that know revisions.
    cloned = restore_status(new(SNAPSHOT | {"clone": True}, mode=mode), stores=filled_stores)
    assert cloned == restore.model_copy(update={"begins_at": None})


@pytest.mark.parametrize(
    ("former", "data_store", "begins_at"),
    [(None, "default", 100_007), ("pool-b", "pool-b", 100_007), (None, "pool-b", None), ("pool-b", None, None)],
)
def test_restore_refuses_snapshot_of_another_data_store(
    former: str | None, data_store: str | None, begins_at: int | None
) -> None:
    filled_stores = stores(snapshot=saved(mode="Virtual", dataStore=former))
    if begins_at is None:
        with pytest.raises(ConditionError, match=f"its data were in data store {former or 'default'}"):
            restore_status(new(SNAPSHOT, data_store=data_store), stores=filled_stores)
    else:
        restore = restore_status(new(SNAPSHOT, data_store=data_store), stores=filled_stores)
        assert restore is not None
        assert restore.begins_at == begins_at
    assert restore_status(new(SNAPSHOT | {"clone": True}, data_store=data_store), stores=filled_stores) is not None


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
@pytest.mark.parametrize(
    ("recorded", "living", "begins_at"), [(5527, None, 5528), (None, 5527, 5528), (5527, 6000, 6001), (7, None, 8)]
)
def test_restore_begins_right_above_highest_served_revision(
    mode: str, recorded: int | None, living: int | None, begins_at: int
) -> None:
    """The rule also holds in another data store, although revisions of two data stores cannot be compared."""
    filled_stores = stores(snapshot=saved(mode="Virtual", dataStore="pool-b", highestRevision=recorded))
    restore = restore_status(new(SNAPSHOT, mode=mode), stores=filled_stores, living=living)
    assert restore is not None
    assert restore.begins_at == begins_at


@pytest.mark.parametrize(
    ("recorded", "later", "begins_at"),
    [
        (None, {"revision": 5_000_000}, 5_100_000),
        (None, {"revision": 5_000_000, "highestRevision": 5_000_040}, 5_000_041),
        # The original outlived the deletion that recorded the revision, such as of a restore for a test.
        (5527, {"revision": 5_000_000}, 5_100_000),
        (5527, {"revision": 5_000_000, "phase": "Failed"}, 5528),
        (5527, {"revision": 5_000_000, "controlPlaneUID": "uid-of-another"}, 5528),
    ],
)
def test_restore_begins_above_later_snapshots_of_same_control_plane(
    recorded: int | None, later: dict[str, Any], begins_at: int
) -> None:
    filled_stores = stores(snapshot=saved(highestRevision=recorded), later=saved("later", **later))
    restore = restore_status(new(SNAPSHOT), stores=filled_stores)
    assert restore is not None
    assert restore.begins_at == begins_at


def test_clone_records_original_once_and_keeps_the_record() -> None:
    filled_stores = stores(original=stored("acme", status=READY))
    restore = restore_status(new(LIVING), stores=filled_stores)
    assert restore is not None
    assert (restore.control_plane_uid, restore.kubernetes_version) == ("uid-of-acme", "v1.36.3")
    assert (restore.snapshot, restore.begins_at) == (None, None)
    assert restored_service_cidr(new(LIVING), stores=filled_stores) == "10.3.0.0/16"
    clone = new(LIVING)
    clone = clone.model_copy(update={"status": clone.status.model_copy(update={"restore": restore})})
    assert restore_status(clone, stores=stores()) == restore


@pytest.mark.parametrize(
    ("source", "known", "said"),
    [
        (
            SNAPSHOT,
            stores(),
            "ControlPlaneSnapshot before cannot be the source of this control plane: it does not exist",
        ),
        (SNAPSHOT, stores(snapshot=saved(phase="Running")), "it is not completed"),
        (SNAPSHOT, stores(snapshot=saved(mode="Both")), "does not understand it"),
        (SNAPSHOT, stores(snapshot=saved(location=None)), "does not say where its file is"),
        (LIVING, stores(), "ControlPlane acme cannot be the source of this control plane: it does not exist"),
        (LIVING, stores(original=stored("acme")), "it was not Ready yet"),
        (LIVING, stores(original=stored("acme", spec={"endpointRef": {"name": "a"}}, status=READY)), "does not run it"),
        (LIVING | {"controlPlaneRef": {"name": "copy"}}, stores(original=stored("copy")), "this control plane itself"),
    ],
)
def test_source_that_is_not_ready_raises_source_not_ready(source: dict[str, Any], known: Stores, said: str) -> None:
    for look in (restore_status, restored_service_cidr):
        if said.endswith("where its file is") and look is restored_service_cidr:
            continue
        with pytest.raises(ConditionError) as caught:
            look(new(source), stores=known)
        assert caught.value.reason is Reason.SOURCE_NOT_READY
        assert said in caught.value.message
