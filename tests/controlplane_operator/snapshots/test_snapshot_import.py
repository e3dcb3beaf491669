"""Import of snapshots from a storage whose content may be damaged or hostile."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pyrage
import pytest

from kplane.api import ControlPlaneMode, ControlPlaneSnapshotStatus, SnapshotPhase
from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.controlplane_operator.backup import storage as backup_storage
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS
from kplane.controlplane_operator.snapshots.catalog import ArchiveName, CatalogEntry
from kplane.controlplane_operator.snapshots.importer import SnapshotImporter
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import AlreadyExists, Client, Resource
from kplane.provider.client.resources import NAMESPACES

UID = "5b1c4b8e-7a0e-4b8e-9d55-0a6d2f1c7e11"
OTHER = "0e7a4f0e-90d7-4c9e-8f0c-4f4e2c0c8a11"
CLUSTER = "77d5b0e4-6a5c-4d06-8a3f-6d1b9f3c2e55"
ARCHIVE = ArchiveName("daily", UID)
KEY = pyrage.x25519.Identity.generate()


class Cluster(Client):
    """Keeps snapshots, as an API server does."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores
        self.version = 100
        self.deleted: list[str] = []

    async def get(self, resource: Any, name: Any, **_: Any) -> dict[str, Any]:
        assert (resource, name) == (NAMESPACES, "kube-system")
        return {"metadata": {"uid": CLUSTER}}

    async def create(self, resource: Any, manifest: Any, **_: Any) -> dict[str, Any]:
        assert resource is CONTROL_PLANE_SNAPSHOTS
        name = manifest["metadata"]["name"]
        if self.stores.snapshots.get(("", name)) is not None:
            raise AlreadyExists(409, "AlreadyExists", f"{name} exists")
        self.version += 1
        metadata = {**manifest["metadata"], "uid": f"new-{name}", "resourceVersion": str(self.version)}
        created = {**manifest, "metadata": metadata}
        self.stores.snapshots.apply(created)
        return created

    async def delete(self, resource: Resource | str, name: Any, **_: Any) -> dict[str, Any]:
        self.deleted.append(name)
        return {}


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.stores = Stores()
        self.client = Cluster(self.stores)
        self.storage = SnapshotStorage(Volume(directory), [KEY.to_public()])
        self.importer = SnapshotImporter(Mock(client=self.client, stores=self.stores), storage=self.storage)

    def write(self, archive: ArchiveName = ARCHIVE, *, entry: bytes | None = None) -> None:
        (self.directory / archive.file).write_bytes(b"age")
        (self.directory / archive.entry).write_bytes(described(archive).encoded() if entry is None else entry)

    def keep(self, name: str, *, uid: str = "there", **given: Any) -> None:
        self.client.version += 1
        metadata = {"name": name, "uid": uid, "resourceVersion": str(self.client.version), **given.pop("metadata", {})}
        self.stores.snapshots.apply({"metadata": metadata, "spec": {"controlPlaneRef": {"name": "acme"}}, **given})

    def names(self) -> list[str]:
        return sorted(snapshot["metadata"]["name"] for snapshot in self.stores.snapshots)


def described(archive: ArchiveName = ARCHIVE, **given: Any) -> CatalogEntry:
    status = ControlPlaneSnapshotStatus.model_validate(completed(**given))
    return CatalogEntry.of(archive, status, control_plane="acme", recipients=[str(KEY.to_public())])


def completed(**given: Any) -> dict[str, Any]:
    return {
        "phase": "Completed",
        "completionTime": "2026-11-20T10:00:00Z",
        "controlPlaneUID": OTHER,
        "mode": "Virtual",
        "revision": 9,
        "keys": 3,
        "bytes": 300,
        "sha256": "a" * 64,
        "serviceCIDR": "10.96.0.0/16",
        "kubernetesVersion": "v1.36.3",
        **given,
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    instance = World(tmp_path)
    with contextlib.closing(instance.storage):
        yield instance


async def test_importer_creates_object_with_deletion_policy_retain(world: World) -> None:
    world.write()
    await world.importer.sync()
    obj = world.stores.snapshots.get(("", "daily"))
    assert obj is not None
    assert obj["spec"] == {"controlPlaneRef": {"name": "acme"}, "deletionPolicy": "Retain"}
    assert obj["metadata"]["annotations"] == {IMPORTED_FROM_ANNOTATION: ARCHIVE.file}
    await world.importer.sync()
    assert world.names() == ["daily"]


async def test_entry_carries_highest_revision_to_another_cluster(world: World) -> None:
    world.write()
    world.keep("daily", uid=UID, status=completed(location=ARCHIVE.file, highestRevision=5527))
    await world.importer.sync()
    entry = await world.storage.entry(ARCHIVE)
    assert entry == described(highestRevision=5527)
    assert entry.recorded()["highest_revision"] == 5527


async def test_importer_reads_entry_again_only_if_highest_revision_rises(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write(entry=described(highestRevision=5600).encoded())
    world.keep("daily", uid=UID, status=completed(location=ARCHIVE.file, highestRevision=5527))
    read = AsyncMock(wraps=world.storage.entry)
    monkeypatch.setattr(world.storage, "entry", read)
    for revision, reads in ((5527, 1), (5527, 1), (5700, 2), (5700, 2)):
        world.keep("daily", uid=UID, status=completed(location=ARCHIVE.file, highestRevision=revision))
        await world.importer.sync()
        assert read.await_count == reads
    # The entry keeps a higher revision, which the operator of another cluster wrote.
    assert (await world.storage.entry(ARCHIVE)).highest_revision == 5700


async def test_importer_records_no_revision_in_entry_of_deleted_snapshot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write()
    world.keep("daily", uid=UID, status=completed(location=ARCHIVE.file, highestRevision=5527))

    async def deleted_meanwhile(_: ArchiveName) -> CatalogEntry:
        world.stores.snapshots.remove(world.stores.snapshots.get(("", "daily")) or {})
        await world.storage.remove(ARCHIVE.file)
        return described()

    monkeypatch.setattr(world.storage, "entry", deleted_meanwhile)
    await world.importer.sync()
    assert list(world.directory.iterdir()) == []


async def test_importer_leaves_objects_that_have_their_file(world: World) -> None:
    world.write()
    world.keep("daily", status=completed(location=ARCHIVE.file))
    # An operator writes this file now for the object of the same uid.
    world.write(ArchiveName("running", OTHER))
    world.keep("running", uid=OTHER)
    await world.importer.sync()
    assert world.names() == ["daily", "running"]
    assert world.client.deleted == []


async def test_importer_uses_another_name_when_the_name_is_taken(world: World) -> None:
    world.write()
    world.keep("daily", status=completed(location="controlplane-daily-of-this-cluster.age"))
    await world.importer.sync()
    assert world.names() == ["daily", f"daily-{UID[:8]}"]


async def test_importer_brings_back_no_snapshot_that_a_user_deleted(world: World) -> None:
    world.write()
    await world.storage.hide(ARCHIVE, cluster=OTHER)
    await world.storage.hide(ArchiveName("gone", OTHER), cluster=CLUSTER)
    await world.importer.sync()
    # The mark of another cluster does not count, and a mark without its file is deleted.
    assert world.names() == ["daily"]
    assert [path.name for path in world.directory.glob("hidden-*")] == [f"hidden-{OTHER}-{UID}"]

    world.stores.snapshots.remove(world.stores.snapshots.get(("", "daily")) or {})
    await world.storage.hide(ARCHIVE, cluster=CLUSTER)
    await world.importer.sync()
    assert world.names() == []


async def test_importer_deletes_imported_object_whose_file_is_gone(world: World) -> None:
    mark = {"annotations": {IMPORTED_FROM_ANNOTATION: ARCHIVE.file}}
    world.keep("daily", metadata=mark, status=completed(location=ARCHIVE.file))
    world.keep("pending", metadata=mark)
    world.keep("own", status=completed(location=ArchiveName("own", OTHER).file))
    world.write(ArchiveName("weekly", OTHER))
    # A single listing may lack an existing file.
    await world.importer.sync()
    assert world.client.deleted == []
    await world.importer.sync()
    assert world.client.deleted == ["daily"]


async def test_importer_deletes_no_object_if_the_storage_is_empty(world: World) -> None:
    mark = {"annotations": {IMPORTED_FROM_ANNOTATION: ARCHIVE.file}}
    world.keep("daily", metadata=mark, status=completed(location=ARCHIVE.file))
    await world.importer.sync()
    await world.importer.sync()
    assert world.client.deleted == []


async def test_importer_reads_an_entry_again_after_an_error_of_the_storage(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.write()
    with monkeypatch.context() as patch:
        patch.setattr(world.storage, "entry", AsyncMock(side_effect=BackupFailed("the storage did not answer")))
        await world.importer.sync()
    assert world.names() == []
    await world.importer.sync()
    assert world.names() == ["daily"]


async def test_importer_describes_files_of_an_earlier_version(world: World) -> None:
    own, gone, foreign = ArchiveName("own", UID), ArchiveName("gone", OTHER), ArchiveName("foreign", CLUSTER)
    for archive in (own, gone, foreign):
        (world.directory / archive.file).write_bytes(b"age")
    world.keep("own", uid=UID, status=completed(location=own.file))
    deleting = {"deletionTimestamp": "2026-11-20T10:00:00Z"}
    world.keep("gone", uid=OTHER, metadata=deleting, status=completed(location=gone.file))
    await world.importer.sync()
    assert [path.name for path in world.directory.glob("*.json")] == [own.entry]
    entry = CatalogEntry.read(Volume(world.directory), own)
    assert (entry.control_plane, entry.sha256, entry.recipients) == ("acme", "a" * 64, [])
    # The entry restores the same status.
    status = ControlPlaneSnapshotStatus(phase=SnapshotPhase.COMPLETED, **entry.recorded())  # type: ignore[arg-type]
    assert status == ControlPlaneSnapshotStatus.model_validate(completed())
    assert status.mode is ControlPlaneMode.VIRTUAL


@pytest.mark.parametrize(
    "entry",
    [
        b"",
        b"{",
        b"null",
        b"[" * 60_000,
        b" " * (65 << 10),
        *(
            json.dumps({**json.loads(described().encoded()), **change}).encode()
            for change in (
                {"format": 2},
                {"name": "another"},
                {"uid": OTHER},
                {"controlPlane": "../acme"},
                {"controlPlane": "a" * 254},
                {"controlPlaneUID": "x"},
                {"sha256": "A" * 64},
                {"revision": 1 << 62},
                {"revision": -1},
                {"highestRevision": 1 << 62},
                {"keys": "many"},
                {"serviceCIDR": "10.96.0.1/8"},
                {"kubernetesVersion": "v1.36.3\nfailed"},
                {"mode": "Other"},
                {"dataStore": "a/b"},
                {"completionTime": "now"},
                {"recipients": ["x"] * 101},
            )
        ),
    ],
)
async def test_importer_skips_invalid_entry_until_it_is_repaired(entry: bytes, world: World) -> None:
    world.write(entry=entry)
    world.write(ArchiveName("weekly", OTHER))
    with pytest.raises(BackupFailed):
        await world.storage.entry(ARCHIVE)
    await world.importer.sync()
    assert world.names() == ["weekly"]
    # A repaired entry is read again.
    world.write()
    await world.importer.sync()
    assert world.names() == ["daily", "weekly"]


async def test_importer_ignores_files_of_other_names(world: World, tmp_path: Path) -> None:
    for name in ("controlplane-x.age", f"controlplane-../x-{UID}.age".replace("/", "_"), f"controlplane-X-{UID}.age"):
        (world.directory / name).write_bytes(b"age")
        (world.directory / name.replace(".age", ".json")).write_bytes(described().encoded())
    # An entry without its file, and a link instead of a file.
    (world.directory / ARCHIVE.entry).write_bytes(described().encoded())
    (world.directory / ARCHIVE.file).symlink_to("/etc/passwd")
    await world.importer.sync()
    assert world.names() == []


async def test_importer_deletes_no_object_if_the_listing_is_too_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup_storage, "_MOST_FILES", 1)
    world.write()
    mark = {"annotations": {IMPORTED_FROM_ANNOTATION: "gone"}}
    world.keep("daily", metadata=mark, status=completed(location="gone"))
    with pytest.raises(BackupFailed, match="the storage has more than 1 files"):
        await world.importer.sync()
    assert world.client.deleted == []


async def test_removal_of_a_file_removes_its_entry(world: World) -> None:
    world.write()
    await world.storage.remove(ARCHIVE.file)
    assert list(world.directory.iterdir()) == []
