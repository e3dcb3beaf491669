"""Reads a snapshot from the storage as a stream, decrypted and checked against the SHA-256 that its object has."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence

import pyrage

from kplane.controlplane_operator.backup.archive import Readable
from kplane.controlplane_operator.backup.storage import Storage
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Archived, ArchiveReader, Pair

__all__ = ["OpenedSnapshot"]

_PIECES = 16
"""Of 64 KiB, that wait to be taken."""


class OpenedSnapshot:
    """A snapshot that is read once, by a thread that waits for its reader. Memory is bounded."""

    def __init__(
        self, storage: SnapshotStorage, name: str, *, keys: Sequence[pyrage.x25519.Identity], sha256: str
    ) -> None:
        """A user who may write to the storage can encrypt to its recipients: `sha256` tells what the operator wrote."""
        self._storage = storage
        self._name = name
        self._keys = keys
        self._sha256 = sha256
        self._reader = ArchiveReader()

    async def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read all keys and values. What was read counts only if `end` raises nothing then.

        Raises BackupFailed, ArchiveDamaged and OSError.
        """
        sink = _Sink(asyncio.get_running_loop())
        reading = asyncio.create_task(self._storage.read(lambda storage: self._decrypt(storage, sink), stop=sink.close))
        reading.add_done_callback(lambda _: sink.ended())
        try:
            while (piece := await sink.pieces.get()) is not None:
                yield self._reader.feed(piece)
            await reading
        finally:
            sink.close()
            reading.cancel()
            await asyncio.wait([reading])

    def end(self) -> Archived:
        """Return what was read. Raises ArchiveDamaged unless it is whole."""
        return self._reader.end()

    def _decrypt(self, storage: Storage, sink: _Sink) -> None:
        with storage.reader(self._name) as file:
            source = _Hashed(file)
            try:
                pyrage.decrypt_io(source, sink, self._keys)
            except pyrage.DecryptError as error:
                raise sink.error or source.error or BackupFailed(f"failed to decrypt {self._name}: {error}") from error
            while source.read(1 << 20):
                pass
        if source.hexdigest() != self._sha256:
            raise BackupFailed(f"{self._name} is not the file that was saved: its SHA-256 is another one")


class _Hashed:
    def __init__(self, file: Readable) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.error: Exception | None = None

    def read(self, size: int = -1, /) -> bytes:
        try:
            found = self._file.read(size)
        except Exception as error:
            self.error = error
            raise
        self._hash.update(found)
        return found

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Sink:
    """Takes what a thread writes, and has it wait for who takes the pieces."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES)
        self.error: Exception | None = None
        self._loop = loop
        self._ending: asyncio.Task[None] | None = None
        """Kept, because the loop does not keep it."""
        self._closed = False

    def write(self, data: bytes, /) -> int:
        try:
            asyncio.run_coroutine_threadsafe(self._put(bytes(data)), self._loop).result()
        except Exception as error:
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        """Do nothing: each piece is passed on at once."""

    def ended(self) -> None:
        """Have the reader see the end, after all pieces."""
        self._ending = self._loop.create_task(self._put_end())

    def close(self) -> None:
        """Take no more: a write that waits ends, and the next one fails."""
        self._closed = True
        while not self.pieces.empty():
            self.pieces.get_nowait()

    async def _put(self, piece: bytes) -> None:
        if self._closed:
            raise BackupFailed("the snapshot is not read any more")
        await self.pieces.put(piece)

    async def _put_end(self) -> None:
        await self.pieces.put(None)
