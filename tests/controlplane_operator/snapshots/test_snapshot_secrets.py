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
    """Yields `count` values of 10 kB in a single page."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        yield Page(9, tuple(KeyValue(f"{prefix}{n}".encode(), os.urandom(10_000), 1) for n in range(self._count)))


@pytest.fixture
async def client(api_server: Handle) -> AsyncIterator[Client]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as instance:
        if not await instance.exists(NAMESPACES, NAMESPACE):
            await instance.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        yield instance


@pytest.fixture
async def storage(client: Client) -> AsyncIterator[SnapshotStorage]:
    instance = SnapshotStorage(SecretStorage(client, namespace=NAMESPACE), [KEY.to_public()])
    with contextlib.closing(instance):
        yield instance
        await instance.remove(NAME)


async def save(storage: SnapshotStorage, *, values: int, name: str = NAME) -> Saved:
    source = Source(Values(values), "/registry/", {"controlPlane": "acme"})
    return await save_snapshot(source, to=storage, name=name)


async def kept(client: Client) -> list[str]:
    listing = await client.list(SECRETS, namespace=NAMESPACE, label_selector=SNAPSHOT_FILE_LABEL)
    return sorted(secret["metadata"]["name"] for secret in listing.items)


@pytest.mark.parametrize(("values", "secrets"), [(1, 1), (300, 6)])
async def test_snapshot_in_secrets_is_read_as_it_was_written(
    client: Client, storage: SnapshotStorage, values: int, secrets: int
) -> None:
    saved = await save(storage, values=values)
    assert len(await kept(client)) == secrets
    opened, count = OpenedSnapshot(storage, NAME, keys=[KEY], sha256=saved.sha256), 0
    async for pairs in opened.pairs():
        count += len(pairs)
    assert (count, opened.end()) == (values, saved.archived)
    await storage.remove(NAME)
    assert await kept(client) == []


async def test_save_refuses_more_than_4_mib_and_leaves_no_secret(client: Client, storage: SnapshotStorage) -> None:
    with pytest.raises(BackupFailed, match=r"has more than 4 MiB, too much for Secrets: set etcd\.backup\.bucket"):
        await save(storage, values=450)
    assert await kept(client) == []


async def test_save_refuses_more_than_limit_of_all_secrets(
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


async def test_incomplete_file_is_refused_and_can_be_overwritten(client: Client, storage: SnapshotStorage) -> None:
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


async def test_name_at_refuses_location_of_another_kind_of_storage(storage: SnapshotStorage, tmp_path: Path) -> None:
    """Otherwise, a deletion would look for the file in the wrong storage, and leave it in the other forever."""
    volume = SnapshotStorage(Volume(tmp_path), [KEY.to_public()])
    assert (storage.location(NAME), volume.location(NAME)) == (f"secrets/{NAME}", NAME)
    for candidate in (storage, volume):
        assert candidate.name_at(candidate.location(NAME)) == NAME
    with pytest.raises(BackupFailed, match="is in Secrets, and the operator keeps snapshots in a bucket or a volume"):
        volume.name_at(storage.location(NAME))
    with pytest.raises(BackupFailed, match="is in a bucket or a volume, and the operator keeps snapshots in Secrets"):
        storage.name_at(volume.location(NAME))
    volume.close()
