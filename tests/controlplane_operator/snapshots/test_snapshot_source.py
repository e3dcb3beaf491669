"""Snapshots and clones of lost data fail, so that they replace no snapshot with the data."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pyrage
import pytest

from kplane.api import ControlPlane, ControlPlaneSnapshot, ControlPlaneSnapshotStatus
from kplane.api.names import ACCEPT_DATA_LOSS_ANNOTATION, SCHEDULED_AT_ANNOTATION, SCHEDULED_FOR_ANNOTATION
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots import source
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.reconciler import ControlPlaneSnapshotReconciler
from kplane.controlplane_operator.snapshots.scheduler import SnapshotScheduler
from kplane.controlplane_operator.snapshots.source import DEDICATED_PREFIX, Sources
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.watch.stores import Stores
from kplane.data import Client, KeyValue, Page, identity_key

IDENTITY = "5f0c"
KUBE_SYSTEM = f"{DEDICATED_PREFIX}namespaces/kube-system".encode()
WHOLE = {
    identity_key(DEDICATED_PREFIX): IDENTITY.encode(),
    KUBE_SYSTEM: json.dumps({"metadata": {"uid": "a"}}).encode(),
}


class Etcd(Client):
    """Keeps keys, as an etcd does."""

    def __init__(self, keys: dict[bytes, bytes]) -> None:
        self.keys = keys

    async def get(self, key: bytes) -> KeyValue | None:
        return KeyValue(key, self.keys[key], 1) if key in self.keys else None

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        items = (KeyValue(key, value, 1) for key, value in self.keys.items() if key.startswith(prefix.encode()))
        yield Page(9, tuple(items))


def control_plane(**metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "acme", "uid": "u", "resourceVersion": "1", **metadata},
        "spec": {"mode": "Dedicated", "classRef": {"name": "hourly"}},
        "status": {"endpoint": "https://acme", "dataIdentity": IDENTITY, "clusterUID": "a"},
    }


def sources(monkeypatch: pytest.MonkeyPatch, keys: dict[bytes, bytes]) -> Sources:
    """Return sources whose only etcd has these keys."""

    @contextlib.asynccontextmanager
    async def dedicated(*_: Any) -> AsyncIterator[tuple[Client, str]]:
        yield Etcd(keys), DEDICATED_PREFIX

    monkeypatch.setattr(source, "TenantKeys", lambda _: Mock(exported=AsyncMock(return_value={"client-ca.key": b"k"})))
    monkeypatch.setattr(Sources, "_dedicated", dedicated)
    return Sources(Mock(), runtime=Mock(), data_stores={})


LOST = pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({identity_key(DEDICATED_PREFIX): b"other"}, "data of identity other instead of 5f0c"),
        ({identity_key(DEDICATED_PREFIX): None}, "no data of identity 5f0c"),
        ({KUBE_SYSTEM: None}, "no data"),
        # An API server that runs while its keys are deleted creates the Namespace again.
        ({KUBE_SYSTEM: b'{"metadata": {"uid": "b"}}'}, "whose namespace kube-system has uid b"),
    ],
    ids=["other identity", "no identity", "no kube-system", "other kube-system"],
)


def lost(change: dict[bytes, bytes | None]) -> dict[bytes, bytes]:
    return {key: value for key, value in {**WHOLE, **change}.items() if value is not None}


@LOST
async def test_source_of_lost_data_raises_backup_failed(
    monkeypatch: pytest.MonkeyPatch, change: dict[bytes, bytes | None], cause: str
) -> None:
    opened = sources(monkeypatch, lost(change)).open(ControlPlane.model_validate(control_plane()))
    with pytest.raises(BackupFailed, match=f"the etcd does not have its data: .*{cause}; see condition Ready"):
        async with opened:
            pytest.fail("lost data were read")


async def test_source_of_whole_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sources(monkeypatch, WHOLE).open(ControlPlane.model_validate(control_plane())) as opened:
        assert opened.prefix == DEDICATED_PREFIX


async def test_source_is_read_after_accepted_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = ControlPlane.model_validate(control_plane(annotations={ACCEPT_DATA_LOSS_ANNOTATION: IDENTITY}))
    async with sources(monkeypatch, {}).open(accepted) as opened:
        assert opened.prefix == DEDICATED_PREFIX


class Cluster:
    """The parts of the operator's context that snapshots use."""

    def __init__(self) -> None:
        self.stores = Stores()
        self.client = self.triggers = self.metrics = Mock(delete=AsyncMock())
        self.status = self

    async def write(self, _: Any, snapshot: ControlPlaneSnapshot, *, status: ControlPlaneSnapshotStatus) -> None:
        obj = self.stores.snapshots.get(("", snapshot.name))
        assert obj is not None
        metadata = {**obj["metadata"], "resourceVersion": str(int(obj["metadata"]["resourceVersion"]) + 1)}
        written = status.model_dump(mode="json", by_alias=True, exclude_none=True)
        self.stores.snapshots.apply({**obj, "metadata": metadata, "status": written})

    def keep(self, name: str, *, hour: int, **status: Any) -> dict[str, Any]:
        annotations = {SCHEDULED_FOR_ANNOTATION: "u", SCHEDULED_AT_ANNOTATION: f"2026-05-05T{hour:02}:00:00+00:00"}
        metadata = {"name": name, "uid": name, "resourceVersion": str(hour), "annotations": annotations}
        snapshot = {"metadata": metadata, "spec": {"controlPlaneRef": {"name": "acme"}}, "status": status}
        self.stores.snapshots.apply(snapshot)
        return snapshot


@LOST
async def test_schedule_keeps_last_good_snapshot_if_data_are_lost(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[bytes, bytes | None], cause: str
) -> None:
    context: Any = Cluster()
    storage = SnapshotStorage(Volume(tmp_path), [pyrage.x25519.Identity.generate().to_public()])
    with contextlib.closing(storage):
        context.stores.control_planes.apply(control_plane())
        settings = {"snapshots": {"schedule": "0 * * * *", "retain": 1}}
        context.stores.classes.apply(
            {"metadata": {"name": "hourly", "uid": "c", "resourceVersion": "1"}, "spec": settings}
        )
        context.keep("good", hour=10, phase="Completed")
        due = ControlPlaneSnapshot.model_validate(context.keep("due", hour=11))
        reconciler = ControlPlaneSnapshotReconciler(
            context, sources=sources(monkeypatch, lost(change)), jobs=SnapshotJobs(), storage=storage
        )
        await reconciler._save(due, of=ControlPlane.model_validate(control_plane()), storage=storage)
        status = (context.stores.snapshots.get(("", "due")) or {})["status"]
        assert status["phase"] == "Failed"
        assert cause in status["conditions"][0]["message"]
        await SnapshotScheduler(context).reconcile(("", "acme"))
        context.client.delete.assert_not_called()
