"""What a new control plane begins with is decided once, by what its source names."""

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


def saved(**status: Any) -> dict[str, Any]:
    whole = {
        "phase": "Completed",
        "location": "file",
        "sha256": "hash",
        "revision": 7,
        "controlPlaneUID": "uid-of-acme",
        "kubernetesVersion": "v1.36.3",
        "serviceCIDR": "10.3.0.0/16",
    }
    return stored("before", spec={"controlPlaneRef": {"name": "acme"}}, status=whole | status)


def stores(*, snapshot: dict[str, Any] | None = None, original: dict[str, Any] | None = None) -> Stores:
    found = Stores()
    if snapshot is not None:
        found.snapshots.apply(snapshot)
    if original is not None:
        found.control_planes.apply(original)
    return found


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
def test_a_restore_begins_far_above_the_snapshot_while_more_is_unknown(former: str, mode: str, begins_at: int) -> None:
    known = stores(snapshot=saved(mode=former))
    found = restore_status(new(SNAPSHOT, mode=mode), stores=known)
    assert found is not None
    assert (found.location, found.control_plane_uid, found.begins_at) == ("file", "uid-of-acme", begins_at)
    assert restored_service_cidr(new(SNAPSHOT), stores=known) == "10.3.0.0/16"
    # Nobody knows revisions of a clone.
    cloned = restore_status(new(SNAPSHOT | {"clone": True}, mode=mode), stores=known)
    assert cloned == found.model_copy(update={"begins_at": None})


@pytest.mark.parametrize(
    ("former", "data_store", "begins_at"),
    [(None, "default", 100_007), ("pool-b", "pool-b", 100_007), (None, "pool-b", None), ("pool-b", None, None)],
)
def test_revisions_of_one_data_store_say_nothing_of_another(
    former: str | None, data_store: str | None, begins_at: int | None
) -> None:
    known = stores(snapshot=saved(mode="Virtual", dataStore=former))
    if begins_at is None:
        with pytest.raises(ConditionError, match=f"its data were in data store {former or 'default'}"):
            restore_status(new(SNAPSHOT, data_store=data_store), stores=known)
    else:
        found = restore_status(new(SNAPSHOT, data_store=data_store), stores=known)
        assert found is not None
        assert found.begins_at == begins_at
    assert restore_status(new(SNAPSHOT | {"clone": True}, data_store=data_store), stores=known) is not None


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
@pytest.mark.parametrize(
    ("recorded", "living", "begins_at"), [(5527, None, 5528), (None, 5527, 5528), (5527, 6000, 6001), (3, None, 8)]
)
def test_a_restore_begins_right_above_what_clients_have_seen(
    mode: str, recorded: int | None, living: int | None, begins_at: int
) -> None:
    """Also in another data store, whose revisions would say nothing by themselves."""
    known = stores(snapshot=saved(mode="Virtual", dataStore="pool-b", highestRevision=recorded))
    found = restore_status(new(SNAPSHOT, mode=mode), stores=known, living=living)
    assert found is not None
    assert found.begins_at == begins_at


def test_a_clone_is_of_the_very_control_plane_that_was_there_first() -> None:
    known = stores(original=stored("acme", status=READY))
    found = restore_status(new(LIVING), stores=known)
    assert found is not None
    assert (found.control_plane_uid, found.kubernetes_version) == ("uid-of-acme", "v1.36.3")
    assert (found.snapshot, found.begins_at) == (None, None)
    assert restored_service_cidr(new(LIVING), stores=known) == "10.3.0.0/16"
    decided = new(LIVING)
    decided = decided.model_copy(update={"status": decided.status.model_copy(update={"restore": found})})
    assert restore_status(decided, stores=stores()) == found


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
def test_what_is_not_ready_is_waited_for(source: dict[str, Any], known: Stores, said: str) -> None:
    for look in (restore_status, restored_service_cidr):
        if said.endswith("where its file is") and look is restored_service_cidr:
            continue
        with pytest.raises(ConditionError) as caught:
            look(new(source), stores=known)
        assert caught.value.reason is Reason.SOURCE_NOT_READY
        assert said in caught.value.message
