"""The highest revision that clients have seen outlives its control plane, even if the operator is killed."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.api import ControlPlane
from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.served_data import UNSEEN_REVISIONS
from kplane.controlplane_operator.controlplanes import served_revisions
from kplane.controlplane_operator.controlplanes.publish import served_revision
from kplane.controlplane_operator.controlplanes.served_revisions import UNKNOWN_REVISIONS, ServedRevisions
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.stores import Stores
from kplane.data import DataLost, ServedData

SOURCE = {"snapshotRef": {"name": "acme-1"}, "identitySecretRef": {"name": "key"}}


def control_plane(name: str = "acme", *, uid: str = "1", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": uid, "resourceVersion": "1"},
        "spec": {"mode": "Dedicated"},
        "status": {"endpoint": "https://acme", "home": {"mode": "Dedicated"}, **status},
    }


def snapshot(name: str, *, of: str = "acme", uid: str = "1", phase: str = "Completed", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1"},
        "spec": {"controlPlaneRef": {"name": of}},
        "status": {"phase": phase, "controlPlaneUID": uid, "revision": 50, **status},
    }


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check_served(client: Any, prefix: str, *, served: ServedData) -> None:
        if client.lost:
            raise DataLost(prefix, expected=served.identity, found=None)

    monkeypatch.setattr(served_revisions, "check_served", check_served)


class World:
    """Snapshots, and the etcd of a control plane."""

    def __init__(self, *snapshots: dict[str, Any], etcd: int | None) -> None:
        self.etcd = etcd
        self.lost = False
        """Whether the etcd lost the data of the control plane."""
        self.stores = Stores()
        self.writes = 0
        for obj in snapshots:
            self.stores.snapshots.apply(obj)
        context: Any = SimpleNamespace(stores=self.stores, status=self)
        self.served = ServedRevisions(context, homes=lambda _: self)  # type: ignore[arg-type, return-value]

    @contextlib.asynccontextmanager
    async def connect(self, control_plane: ControlPlane) -> AsyncIterator[Any]:
        if self.etcd is None:
            raise ConditionError(Reason.MIGRATING, f"waiting for etcd of {control_plane.name}")

        async def revision() -> int | None:
            return self.etcd

        client = SimpleNamespace(revision=revision, lost=self.lost)
        yield SimpleNamespace(client=client, prefix="/registry/")

    async def write(self, store: Any, current: Any, *, status: Any) -> None:
        self.writes += 1
        dumped = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        stored = store.get(("", current.name))
        metadata = {**stored["metadata"], "resourceVersion": str(int(stored["metadata"]["resourceVersion"]) + 1)}
        store.apply({**stored, "metadata": metadata, "status": dumped})

    async def delete(self, obj: dict[str, Any], *, waits: bool = False) -> None:
        await self.served.remember(ControlPlane.model_validate(obj), waits=waits)

    def recorded(self) -> dict[str, int | None]:
        return {obj["metadata"]["name"]: obj["status"].get("highestRevision") for obj in self.stores.snapshots}


async def test_remember_records_revision_in_all_restorable_snapshots() -> None:
    imported = snapshot("of its name in another cluster", uid="9")
    imported["metadata"]["annotations"] = {IMPORTED_FROM_ANNOTATION: "file"}
    world = World(
        snapshot("own"),
        snapshot("of an earlier one of its name", uid="0"),
        snapshot("of its origin", of="former", uid="origin"),
        snapshot("of another one", of="other", uid="2"),
        snapshot("not complete", phase="Running"),
        imported,
        etcd=5527,
    )
    await world.delete(control_plane(restore={"controlPlaneUID": "origin", "beginsAt": 10}))
    snapshot_names = {name for name, revision in world.recorded().items() if revision == 5527}
    assert snapshot_names == {"own", "of an earlier one of its name", "of its origin"}
    assert len([value for value in world.recorded().values() if value is None]) == 3


async def test_remember_keeps_recorded_revision_after_etcd_is_deleted() -> None:
    world = World(snapshot("own"), etcd=5527)
    await world.delete(control_plane())
    world.etcd = None
    await world.delete(control_plane(), waits=True)
    assert (world.recorded(), world.writes) == ({"own": 5527}, 1)


async def test_remember_waits_for_etcd_and_then_records_upper_bound() -> None:
    moved = {
        "migration": {
            "from": {"mode": "Virtual"},
            "to": {"mode": "Dedicated"},
            "beginsAt": 5100,
            "cutTime": "2026-11-27T12:00:00Z",
        }
    }
    world = World(snapshot("own", highestRevision=90), etcd=None)
    with pytest.raises(ConditionError, match="waiting for etcd, to record in snapshots where a restore begins"):
        await world.delete(control_plane(**moved), waits=True)
    await world.delete(control_plane(**moved))
    assert world.recorded() == {"own": 5100 + UNKNOWN_REVISIONS}
    await world.delete(control_plane(**moved))
    assert world.writes == 1


async def test_remember_ignores_the_revision_of_an_etcd_that_lost_the_data() -> None:
    """An emptied etcd begins at revision 1 again, and clients have seen far higher revisions."""
    world = World(snapshot("own"), etcd=3)
    world.lost = True
    await world.delete(control_plane(servedRevision=9000), waits=True)
    assert world.recorded() == {"own": 9000 + UNSEEN_REVISIONS}
    # The removal may be repeated.
    await world.delete(control_plane(servedRevision=9000), waits=True)
    assert world.writes == 1
    # An earlier version recorded no revision in the status.
    world = World(snapshot("own"), etcd=3)
    world.lost = True
    await world.delete(control_plane(), waits=True)
    assert world.recorded() == {"own": 50 + UNKNOWN_REVISIONS}


async def test_remember_keeps_exact_revision_after_the_data_are_deleted() -> None:
    world = World(snapshot("own"), etcd=9400)
    await world.delete(control_plane(servedRevision=9000))
    world.lost, world.etcd = True, 9500
    await world.delete(control_plane(servedRevision=9000), waits=True)
    assert (world.recorded(), world.writes) == ({"own": 9400}, 1)


async def test_remember_records_served_revision_above_etcd_after_accepted_loss() -> None:
    world = World(snapshot("own"), etcd=700)
    await world.delete(control_plane(servedRevision=9000))
    assert world.recorded() == {"own": 9000}


@pytest.mark.parametrize(
    ("etcd", "lost", "served", "expected"),
    [
        (3, True, 9000, 9000 + UNSEEN_REVISIONS),
        (3, True, None, None),
        (None, False, 9000, 9000 + UNSEEN_REVISIONS),
        (700, False, 9000, 9000 + 100_000),
        (9500, False, 9000, 9500 + 100_000),
    ],
)
async def test_of_living_source_uses_served_revision_if_etcd_is_lost(
    etcd: int | None, lost: bool, served: int | None, expected: int | None
) -> None:
    world = World(snapshot("acme-1"), etcd=etcd)
    world.lost = lost
    world.stores.control_planes.apply(control_plane(servedRevision=served))
    copy = control_plane("copy", uid="2")
    copy["spec"]["source"] = SOURCE
    assert await world.served.of_living_source(ControlPlane.model_validate(copy)) == expected


@pytest.mark.parametrize(
    ("etcd", "expected"),
    # The shared etcd lost the keys of one control plane, or all keys.
    [(9400, 9400), (700, 9000 + UNSEEN_REVISIONS)],
)
async def test_remember_trusts_a_shared_etcd_above_the_served_revision(etcd: int, expected: int) -> None:
    world = World(snapshot("own"), etcd=etcd)
    world.lost = True
    await world.delete(control_plane(servedRevision=9000, home={"mode": "Virtual"}))
    assert world.recorded() == {"own": expected}


@pytest.mark.parametrize(
    ("recorded", "revision", "expected"),
    [
        (None, None, None),
        (None, 7, 7),
        (9000, None, 9000),
        (9000, 18_999, 9000),
        (9000, 19_000, 19_000),
        # Another etcd, after an accepted loss.
        (9000, 3, 9000),
    ],
)
def test_served_revision_is_recorded_in_steps(recorded: int | None, revision: int | None, expected: int | None) -> None:
    model = ControlPlane.model_validate(control_plane(servedRevision=recorded))
    assert served_revision(model, revision) == expected


async def test_remember_never_lowers_a_revision() -> None:
    world = World(snapshot("own", highestRevision=9000), etcd=5527)
    await world.delete(control_plane())
    assert (world.recorded(), world.writes) == ({"own": 9000}, 0)


async def test_remember_asks_no_etcd_without_snapshots_or_endpoint() -> None:
    await World(etcd=None).delete(control_plane(), waits=True)
    await World(snapshot("own"), etcd=None).delete(control_plane(endpoint=None), waits=True)


async def test_remember_raises_revision_with_each_restore_of_a_snapshot() -> None:
    world = World(snapshot("own"), etcd=100)
    for uid, revision in (("1", 100), ("2", 250), ("3", 300)):
        world.etcd = revision
        await world.delete(control_plane(uid=uid, restore={"controlPlaneUID": "1", "beginsAt": revision - 10}))
        assert world.recorded() == {"own": revision}


@pytest.mark.parametrize(("etcd", "answered"), [(5527, True), (None, False)])
async def test_of_living_source_returns_revision_above_etcd_or_none(etcd: int | None, answered: bool) -> None:
    world = World(snapshot("acme-1"), etcd=etcd)
    world.stores.control_planes.apply(control_plane())
    copy = control_plane("copy", uid="2")
    copy["spec"]["source"] = SOURCE
    revision = await world.served.of_living_source(ControlPlane.model_validate(copy))
    assert (revision is not None and revision > 5527) == answered
    restored = control_plane("copy", uid="2", restore={"beginsAt": 7})
    restored["spec"]["source"] = SOURCE
    assert await world.served.of_living_source(ControlPlane.model_validate(restored)) is None
