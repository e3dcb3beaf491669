"""Storage of snapshots that hangs: its calls use their own threads, and time out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pyrage
import pytest
from typing_extensions import override

from kplane.controlplane_operator.backup.archive import Readable, Writable
from kplane.controlplane_operator.backup.storage import Volume
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots import storage as snapshot_storage
from kplane.controlplane_operator.snapshots.opening import OpenedSnapshot
from kplane.controlplane_operator.snapshots.saving import Saved, save_snapshot
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Client, KeyValue, Page

KEY = pyrage.x25519.Identity.generate()
NAME = "controlplane-acme-uid.age"


class Hanging(Volume):
    """Hangs in method `hangs_in` until it is released, and records the threads that use it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.hangs_in = ""
        self.released = threading.Event()
        self.threads = set[str]()
        self.reading = threading.Event()
        self.pieces = 0

    def _enter(self, method: str) -> None:
        self.threads.add(threading.current_thread().name)
        if self.hangs_in == method:
            self.released.wait()

    @override
    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        self._enter("writer")
        with super().writer(name) as file:
            yield file

    @override
    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Readable]:
        self._enter("reader")
        with super().reader(name) as file:
            yield _Pieces(self) if self.hangs_in == "read" else file

    @override
    def remove(self, name: str) -> None:
        self._enter("remove")
        super().remove(name)


class _Pieces:
    """A file of 100 pieces. The first read returns when the storage is released."""

    def __init__(self, storage: Hanging) -> None:
        self._storage = storage

    def read(self, size: int = -1, /) -> bytes:
        self._storage.reading.set()
        self._storage.released.wait()
        self._storage.pieces += 1
        return b"piece" if self._storage.pieces <= 100 else b""


class OnePage(Client):
    def __init__(self) -> None:
        pass

    async def pages(self, prefix: str, *, size: int = 500, revision: int = 0) -> AsyncIterator[Page]:
        yield Page(9, (KeyValue(f"{prefix}key".encode(), b"value", 1),))


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    monkeypatch.setattr(snapshot_storage, "_IDLE_SECONDS", 0.2)
    monkeypatch.setattr(snapshot_storage, "_REMOVAL_SECONDS", 0.2)
    monkeypatch.setattr(snapshot_storage, "_END_SECONDS", 0.01)
    volume = Hanging(tmp_path)
    yield volume
    volume.released.set()


@pytest.fixture
def storage(hanging: Hanging) -> Iterator[SnapshotStorage]:
    instance = SnapshotStorage(hanging, [KEY.to_public()])
    with contextlib.closing(instance):
        yield instance


async def save(storage: SnapshotStorage) -> Saved:
    return await save_snapshot(Source(OnePage(), "/registry/", {"controlPlane": "acme"}), to=storage, name=NAME)


async def read(storage: SnapshotStorage, saved: Saved) -> int:
    opened = OpenedSnapshot(storage, NAME, keys=[KEY], sha256=saved.sha256)
    return sum([len(pairs) async for pairs in opened.pairs()])


async def test_storage_is_used_by_its_own_threads_only(hanging: Hanging, storage: SnapshotStorage) -> None:
    """DNS and TLS of all connections need the threads of asyncio."""
    assert await read(storage, await save(storage)) == 1
    assert {name.rpartition("_")[0] for name in hanging.threads} == {"snapshots"}


@pytest.mark.parametrize("method", ["remove", "writer", "reader"])
async def test_save_fails_while_storage_hangs_and_succeeds_later(
    method: str, hanging: Hanging, storage: SnapshotStorage, eventually: Callable[..., Awaitable[Any]]
) -> None:
    hanging.hangs_in = method
    with pytest.raises(BackupFailed, match=r"the storage did not answer within .* seconds; check the storage"):
        await save(storage)
    # The thread of the hanging call may still write or delete that file, so that no other thread may write it.
    with pytest.raises(BackupFailed, match=f"the storage has not ended earlier work on {NAME}"):
        await save(storage)

    hanging.hangs_in = ""
    hanging.released.set()

    async def saved() -> Saved | str:
        try:
            return await save(storage)
        except BackupFailed as error:
            return str(error)

    result = await eventually(saved, lambda told: isinstance(told, Saved))
    assert isinstance(result, Saved)
    assert await read(storage, result) == 1


async def test_save_cancelled_during_its_check_leaves_no_file(
    hanging: Hanging, storage: SnapshotStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends after the next piece, however large the file is."""
    monkeypatch.setattr(snapshot_storage, "_IDLE_SECONDS", 60.0)
    monkeypatch.setattr(snapshot_storage, "_END_SECONDS", 60.0)
    hanging.hangs_in = "read"
    saving = asyncio.create_task(save(storage))
    await asyncio.to_thread(hanging.reading.wait)
    saving.cancel()
    asyncio.get_running_loop().call_soon(hanging.released.set)
    with pytest.raises(asyncio.CancelledError):
        await saving
    assert hanging.pieces == 1
    assert os.listdir(tmp_path) == []


async def test_read_fails_while_storage_hangs_and_succeeds_later(hanging: Hanging, storage: SnapshotStorage) -> None:
    saved = await save(storage)
    hanging.hangs_in = "reader"
    with pytest.raises(BackupFailed, match="the storage did not answer"):
        await read(storage, saved)
    # The hanging read does not block later reads of the file.
    hanging.hangs_in = ""
    assert await read(storage, saved) == 1
