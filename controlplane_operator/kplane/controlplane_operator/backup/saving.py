"""Creation of a backup: writes a stream, verifies the file, and removes old backups."""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyrage

from kplane.api.clocks import CLOCKS_DIFFER
from kplane.controlplane_operator.backup.archive import encrypt, pack
from kplane.controlplane_operator.backup.storage import ENCRYPTED, PLAIN, Hashing, Storage, digest_of
from kplane.controlplane_operator.errors import BackupFailed
from kplane.data import Client
from kplane.data.snapshot import Snapshot

__all__ = ["Pulling", "save", "split_by_time", "write"]

_TIME: Final = "%Y%m%dT%H%M%SZ"
_BATCH: Final = 1 << 20


async def save(
    etcd: Client,
    *,
    objects: AsyncIterator[dict[str, Any]] | None,
    storage: Storage,
    to: Sequence[pyrage.x25519.Recipient],
    keep: int,
    say: Callable[[str], None],
) -> str:
    """Save etcd, and with recipients also the objects. Returns the name of the backup.

    Without recipients the backup is only the unencrypted snapshot of etcd. The newest `keep` backups are retained,
    and all backups with a time in the future. A failure removes no older backup. Raises BackupFailed, DataError,
    ProviderError and OSError.
    """
    for removed in await asyncio.to_thread(storage.prepare):
        say(f"removed {removed}")
    snapshot = await Snapshot.take(etcd.connection)
    chunks = snapshot.chunks() if objects is None else pack(snapshot, objects)
    name = datetime.now(UTC).strftime(_TIME) + (PLAIN if objects is None else ENCRYPTED)
    source = Pulling(chunks, loop=asyncio.get_running_loop())
    written = await asyncio.to_thread(write, source, storage, name, to)
    if await asyncio.to_thread(digest_of, storage, name) != written:
        await asyncio.to_thread(storage.remove, name)
        raise BackupFailed(
            f"failed to save {name}: what the storage returns is not what was written; check the storage"
        )
    say(f"saved {name}")
    present, ahead = split_by_time(await asyncio.to_thread(storage.names), now=datetime.now(UTC))
    if ahead:
        say(
            f"kept {', '.join(ahead)} with times in the future: a clock is wrong, or was; check the clocks of all nodes"
        )
    for old in present[:-keep]:
        await asyncio.to_thread(storage.remove, old)
        say(f"removed {old}")
    return name


def split_by_time(names: Sequence[str], *, now: datetime) -> tuple[Sequence[str], Sequence[str]]:
    """Split backups into past backups and backups with a time in the future. `names` must be sorted by time.

    Retention counts past backups only. Otherwise the backups of the future would be the newest, and each new backup
    would be removed at once. Backups of the future stay until their time has come: the wrong clock may be the present
    clock, and then they are good backups.
    """
    limit = (now + CLOCKS_DIFFER).strftime(_TIME)
    present = [name for name in names if name[: len(limit)] <= limit]
    return present, names[len(present) :]


def write(source: Pulling, storage: Storage, name: str, to: Sequence[pyrage.x25519.Recipient]) -> str:
    """Write a stream to the storage, encrypted if `to` has recipients. Returns the SHA-256 of the file.

    Blocks. Raises BackupFailed, OSError, and the errors of the stream.
    """
    with storage.writer(name) as file:
        target = Hashing(file)
        if to:
            try:
                encrypt(source, target, to=to)
            except pyrage.EncryptError as error:
                raise source.error or target.error or BackupFailed(f"failed to encrypt {name}: {error}") from error
        else:
            while chunk := source.read(_BATCH):
                target.write(chunk)
    return target.hexdigest()


class Pulling:
    """Reader of an asynchronous stream for another thread."""

    def __init__(self, chunks: AsyncIterator[bytes], *, loop: asyncio.AbstractEventLoop) -> None:
        self._chunks = chunks
        self._loop = loop
        self._buffer = memoryview(b"")
        self._awaited: concurrent.futures.Future[bytes] | None = None
        self._closed = False
        self.error: Exception | None = None
        self.waited_seconds = 0.0
        """Time that the other thread has waited for the stream."""

    def close(self) -> None:
        """Stop the other thread: its next read raises BackupFailed. Call this before the event loop ends."""
        self._closed = True
        if self._awaited is not None:
            self._awaited.cancel()

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, and no bytes at the end. Records an error in `error` before it is raised."""
        if not self._buffer:
            began = time.monotonic()
            try:
                self._buffer = memoryview(self._pull())
            except Exception as error:
                self.error = error
                raise
            finally:
                self.waited_seconds += time.monotonic() - began
        data = self._buffer if size < 0 else self._buffer[:size]
        self._buffer = self._buffer[len(data) :]
        return bytes(data)

    def _pull(self) -> bytes:
        if not self._closed:
            self._awaited = asyncio.run_coroutine_threadsafe(self._next(), self._loop)
        if self._closed or self._awaited is None:
            raise BackupFailed("the operator ends")
        try:
            return self._awaited.result()
        except concurrent.futures.CancelledError as error:
            raise BackupFailed("the operator ends") from error

    async def _next(self) -> bytes:
        """Join pieces to about 1 MiB, since each change of threads costs more than the 32 KiB of a piece of etcd."""
        pieces, size = [], 0
        while size < _BATCH:
            piece = await anext(self._chunks, None)
            if piece is None:
                break
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)
