"""Files of small snapshots, kept as Secrets of the management cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pyrage
import pytest

from kplane.api.names import SNAPSHOT_FILE_LABEL
from kplane.controlplane_operator.backup.storage import Storage, Volume
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots import secrets as snapshot_secrets
from kplane.controlplane_operator.snapshots.opening import OpenedSnapshot
from kplane.controlplane_operator.snapshots.saving import Saved, save_snapshot
from kplane.controlplane_operator.snapshots.secrets import SecretStorage
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Client as Etcd
from kplane.data import KeyValue, Page
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

KEY = pyrage.x25519.Identity.generate()
NAMESPACE = "snapshot-files"
NAME = "controlplane-acme-uid.age"


class Values(Etcd):
    """So many values of 10 kB."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        yield Page(9, tuple(KeyValue(f"{prefix}{n}".encode(), os.urandom(10_000), 1) for n in range(self._count)))


@pytest.fixture
async def client(api_server: Handle) -> AsyncIterator[Client]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as made:
        if not await made.exists(NAMESPACES, NAMESPACE):
            await made.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        yield made


@pytest.fixture
async def storage(client: Client) -> AsyncIterator[SnapshotStorage]:
    made = SnapshotStorage(SecretStorage(client, namespace=NAMESPACE), [KEY.to_public()])
    with contextlib.closing(made):
        yield made
        await made.remove(NAME)


async def save(storage: SnapshotStorage, *, values: int, name: str = NAME) -> Saved:
    source = Source(Values(values), "/registry/", {"controlPlane": "acme"})
    return await save_snapshot(source, to=storage, name=name)


async def kept(client: Client) -> list[str]:
    found = await client.list(SECRETS, namespace=NAMESPACE, label_selector=SNAPSHOT_FILE_LABEL)
    return sorted(each["metadata"]["name"] for each in found.items)


@pytest.mark.parametrize(("values", "secrets"), [(1, 1), (300, 6)])
async def test_a_snapshot_is_read_as_it_was_written(
    client: Client, storage: SnapshotStorage, values: int, secrets: int
) -> None:
    saved = await save(storage, values=values)
    assert len(await kept(client)) == secrets
    opened, found = OpenedSnapshot(storage, NAME, keys=[KEY], sha256=saved.sha256), 0
    async for pairs in opened.pairs():
        found += len(pairs)
    assert (found, opened.end()) == (values, saved.archived)
    await storage.remove(NAME)
    assert await kept(client) == []


async def test_what_is_too_large_is_refused_and_leaves_nothing(client: Client, storage: SnapshotStorage) -> None:
    with pytest.raises(BackupFailed, match=r"has more than 4 MiB, too much for Secrets: set etcd\.backup\.bucket"):
        await save(storage, values=450)
    assert await kept(client) == []


async def test_all_together_are_bounded(
    client: Client, storage: SnapshotStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_secrets, "_MOST_BYTES", 1 << 20)
    with pytest.raises(BackupFailed, match="may have 1 MiB, and have 0 MiB already: delete snapshots"):
        await save(storage, values=150)
    assert await kept(client) == []
    await save(storage, values=100)
    with pytest.raises(BackupFailed, match="may have 1 MiB, and have 0 MiB already: delete snapshots"):
        await save(storage, values=20, name="controlplane-globex-uid.age")
    assert len(await kept(client)) == 2


async def test_a_part_that_a_killed_operator_left_is_no_file(client: Client, storage: SnapshotStorage) -> None:
    await save(storage, values=100)
    first, second = await kept(client)
    await client.delete(SECRETS, first, namespace=NAMESPACE)

    def read(files: Storage) -> None:
        with files.reader(NAME) as file:
            file.read()

    with pytest.raises(BackupFailed, match=f"Secret {NAMESPACE}/{first} is gone"):
        await storage.read(read, stop=lambda: None)
    assert await kept(client) == [second]
    await save(storage, values=1)
    assert await kept(client) == [first]


async def test_a_file_is_looked_for_in_the_kind_of_storage_that_has_it(
    storage: SnapshotStorage, tmp_path: Path
) -> None:
    """Else a deletion would find nothing, and leave the file for ever."""
    volume = SnapshotStorage(Volume(tmp_path), [KEY.to_public()])
    assert (storage.location(NAME), volume.location(NAME)) == (f"secrets/{NAME}", NAME)
    for found in (storage, volume):
        assert found.name_at(found.location(NAME)) == NAME
    with pytest.raises(BackupFailed, match="is in Secrets, and the operator keeps snapshots in a bucket or a volume"):
        volume.name_at(storage.location(NAME))
    with pytest.raises(BackupFailed, match="is in a bucket or a volume, and the operator keeps snapshots in Secrets"):
        storage.name_at(volume.location(NAME))
    volume.close()
