"""Stream of a snapshot from the storage, decrypted and compared with the SHA-256 in the status of its object."""

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
"""Maximum number of pieces of 64 KiB that wait for the reader."""


class OpenedSnapshot:
    """Snapshot that is read once. A thread decrypts the file and waits for the reader, so memory is bounded."""

    def __init__(
        self, storage: SnapshotStorage, name: str, *, keys: Sequence[pyrage.x25519.Identity], sha256: str
    ) -> None:
        """`sha256` is the hash of the file that the operator wrote.

        The hash is necessary because a user with write access to the storage can encrypt files to its recipients.
        """
        self._storage = storage
        self._name = name
        self._keys = keys
        self._sha256 = sha256
        self._reader = ArchiveReader()

    async def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read all keys and values. The result is valid only if `end` does not raise afterwards.

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
        """Return the totals of the archive. Raises ArchiveDamaged if the archive is incomplete."""
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
            data = self._file.read(size)
        except Exception as error:
            self.error = error
            raise
        self._hash.update(data)
        return data

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


class _Sink:
    """Sink of the thread that decrypts. The thread blocks until the reader takes the pieces."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES)
        self.error: Exception | None = None
        self._loop = loop
        self._ending: asyncio.Task[None] | None = None
        """Reference to the task, because the event loop keeps only a weak reference."""
        self._closed = False

    def write(self, data: bytes, /) -> int:
        try:
            asyncio.run_coroutine_threadsafe(self._put(bytes(data)), self._loop).result()
        except Exception as error:
            self.error = error
            raise
        return len(data)

    def flush(self) -> None:
        """Do nothing: `write` passes each piece on at once."""

    def ended(self) -> None:
        """Mark the end of the stream for the reader, after all pieces."""
        self._ending = self._loop.create_task(self._put_end())

    def close(self) -> None:
        """Accept no more pieces: a blocked `write` returns, and the next `write` raises BackupFailed."""
        self._closed = True
        while not self.pieces.empty():
            self.pieces.get_nowait()

    async def _put(self, piece: bytes) -> None:
        if self._closed:
            raise BackupFailed("the snapshot is not read any more")
        await self.pieces.put(piece)

    async def _put_end(self) -> None:
        await self.pieces.put(None)
