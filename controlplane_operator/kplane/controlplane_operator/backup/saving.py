"""Makes a backup: writes it as a stream, reads it again, and removes old ones."""

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
    """Save etcd, and with recipients the objects too; returns the name of the backup.

    Without recipients the backup is the snapshot alone, and not encrypted. The newest `keep` backups stay, and all with
    a time in the future; nothing is removed after a failure. Raises BackupFailed, DataError, ProviderError and OSError.
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
    """Return the backups whose time has come, and those with a time in the future; `names` are sorted by time.

    Retention counts the former only. If the latter counted, they would be the newest, and each new backup would be
    removed at once. They stay until their time has come: the clock that is behind may be the present one, and then they
    are good backups.
    """
    limit = (now + CLOCKS_DIFFER).strftime(_TIME)
    present = [name for name in names if name[: len(limit)] <= limit]
    return present, names[len(present) :]


def write(source: Pulling, storage: Storage, name: str, to: Sequence[pyrage.x25519.Recipient]) -> str:
    """Write a stream to the storage, encrypted to `to` unless that is empty; returns the SHA-256 of what was written.

    Blocks. Raises BackupFailed, OSError, and what the stream raises.
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
    """Reads an asynchronous stream from another thread."""

    def __init__(self, chunks: AsyncIterator[bytes], *, loop: asyncio.AbstractEventLoop) -> None:
        self._chunks = chunks
        self._loop = loop
        self._buffer = memoryview(b"")
        self._awaited: concurrent.futures.Future[bytes] | None = None
        self._closed = False
        self.error: Exception | None = None
        self.waited_seconds = 0.0
        """For which the other thread has waited for the stream."""

    def close(self) -> None:
        """Have the other thread end: it reads no more. For a loop that is about to end."""
        self._closed = True
        if self._awaited is not None:
            self._awaited.cancel()

    def read(self, size: int = -1, /) -> bytes:
        """Return up to so many bytes; none at the end. Keeps the error that it raises."""
        if not self._buffer:
            began = time.monotonic()
            try:
                self._buffer = memoryview(self._pull())
            except Exception as error:
                self.error = error
                raise
            finally:
                self.waited_seconds += time.monotonic() - began
        found = self._buffer if size < 0 else self._buffer[:size]
        self._buffer = self._buffer[len(found) :]
        return bytes(found)

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
        """Join pieces, since each change of threads costs more than a piece of etcd's 32 KiB."""
        pieces, size = [], 0
        while size < _BATCH:
            piece = await anext(self._chunks, None)
            if piece is None:
                break
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)
