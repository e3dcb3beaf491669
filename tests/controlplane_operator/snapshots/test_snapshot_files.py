"""Files of snapshots: writes, reads, and refusal of foreign or damaged files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace

import pyrage
import pytest

from kplane.controlplane_operator.backup import saving as backup_saving
from kplane.controlplane_operator.backup.archive import Writable
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots import saving
from kplane.controlplane_operator.snapshots.opening import OpenedSnapshot
from kplane.controlplane_operator.snapshots.saving import Saved, save_snapshot
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import ArchiveDamaged, Client, Compacted, DataError, KeyValue, Page, Unreachable

KEY = pyrage.x25519.Identity.generate()
NAME = "controlplane-acme-uid.age"


class Pages(Client):
    """Yields 300 values of 10 kB in three pages, and then raises `fails` if it is set."""

    def __init__(self, *, fails: DataError | None = None) -> None:
        self._fails = fails

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        for page in range(3):
            yield Page(9, tuple(KeyValue(f"{prefix}{page}-{n}".encode(), os.urandom(10_000), 1) for n in range(100)))
        if self._fails is not None:
            raise self._fails


def storage_in(directory: Path) -> SnapshotStorage:
    return SnapshotStorage(Volume(directory), [KEY.to_public()])


async def save(directory: Path, *, fails: DataError | None = None) -> Saved:
    source = Source(Pages(fails=fails), "/registry/", {"controlPlane": "acme"})
    return await save_snapshot(source, to=storage_in(directory), name=NAME)


async def read(directory: Path, saved: Saved, *, key: pyrage.x25519.Identity = KEY) -> int:
    opened = OpenedSnapshot(storage_in(directory), NAME, keys=[key], sha256=saved.sha256)
    count = 0
    async for pairs in opened.pairs():
        count += len(pairs)
    assert opened.end() == saved.archived
    return count


async def test_snapshot_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    saved = await save(tmp_path)
    assert await read(tmp_path, saved) == 300
    # A reader may stop before the end of the file.
    opened = OpenedSnapshot(storage_in(tmp_path), NAME, keys=[KEY], sha256=saved.sha256)
    async for _ in opened.pairs():
        break


async def test_failed_save_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / f".{NAME}.partial").write_text("of a killed operator")
    with pytest.raises(Unreachable, match="etcd is gone"):
        await save(tmp_path, fails=Unreachable("etcd is gone"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("slow", "said"),
    [
        ("etcd", "of 400 s, the storage waited 400 s for etcd; give etcd and the operator more processor time"),
        ("storage", "of 400 s, the storage waited 0 s for etcd; use a faster bucket or volume"),
    ],
)
async def test_save_error_after_compaction_names_slow_side(
    slow: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pages of a snapshot are of the same revision, and etcd keeps no revision for long."""
    clock = SimpleNamespace(now=100.0)

    class SlowVolume(Volume):
        @contextlib.contextmanager
        def writer(self, name: str) -> Iterator[Writable]:
            with super().writer(name) as file:
                clock.now += 400.0 if slow == "storage" else 0.0
                yield file

    class SlowPages(Pages):
        async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
            clock.now += 400.0 if slow == "etcd" else 0.0
            async for page in super().pages(prefix):
                yield page

    for module in (backup_saving, saving):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    compacted = Compacted("OUT_OF_RANGE: etcdserver: mvcc: required revision has been compacted")
    source = Source(SlowPages(fails=compacted), "/registry/", {"controlPlane": "acme"})
    storage = SnapshotStorage(SlowVolume(tmp_path), [KEY.to_public()])
    with pytest.raises(BackupFailed, match=said):
        await save_snapshot(source, to=storage, name=NAME)
    assert os.listdir(tmp_path) == []


async def test_read_refuses_file_of_another_writer(tmp_path: Path) -> None:
    """Recipients are public keys: every writer of the storage can encrypt to them."""
    saved, content = await save(tmp_path), (tmp_path / NAME).read_bytes()
    plain = io.BytesIO()
    pyrage.decrypt_io(io.BytesIO(content), plain, [KEY])
    forged = io.BytesIO()
    pyrage.encrypt_io(io.BytesIO(plain.getvalue()), forged, [KEY.to_public()])
    (tmp_path / NAME).write_bytes(forged.getvalue())
    with pytest.raises(BackupFailed, match="is not the file that was saved"):
        await read(tmp_path, saved)


@pytest.mark.parametrize("change", ["cut", "garbled", "appended"])
async def test_read_refuses_damaged_file(change: str, tmp_path: Path) -> None:
    saved, content = await save(tmp_path), (tmp_path / NAME).read_bytes()
    middle = len(content) // 2
    variants = {
        "cut": content[:middle],
        "garbled": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        "appended": content + b"x",
    }
    (tmp_path / NAME).write_bytes(variants[change])
    with pytest.raises((BackupFailed, ArchiveDamaged, OSError)):
        await read(tmp_path, saved)


async def test_read_with_another_key_raises_backup_failed(tmp_path: Path) -> None:
    with pytest.raises(BackupFailed, match="failed to decrypt"):
        await read(tmp_path, await save(tmp_path), key=pyrage.x25519.Identity.generate())
