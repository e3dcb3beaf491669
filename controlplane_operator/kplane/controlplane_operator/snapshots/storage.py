"""Storage of snapshots. Work in the storage runs in separate threads, and is abandoned if the storage hangs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import pyrage
from typing_extensions import override

from kplane.controlplane_operator.backup.archive import Readable, Writable
from kplane.controlplane_operator.backup.storage import Storage
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots.catalog import ArchiveName, CatalogEntry, hidden_name, write_entry
from kplane.controlplane_operator.snapshots.secrets import SecretStorage

__all__ = ["SnapshotStorage"]

_T = TypeVar("_T")

_IN_SECRETS: Final = "secrets/"
_THREADS: Final = 8
"""Number of threads. Two snapshots, two restores and removals need five; the others are for work that hangs."""
_IDLE_SECONDS: Final = 600.0
"""Timeout without progress. A bucket answers or fails within five minutes; a volume may take longer to flush a large
file.
"""
_REMOVAL_SECONDS: Final = 60.0
"""Timeout of a removal, shorter than the timeout of a reconcile of a snapshot."""
_LISTING_SECONDS: Final = 300.0
_END_SECONDS: Final = 10.0
"""Maximum time to wait for a thread after its work was stopped."""


class SnapshotStorage:
    """Files of snapshots, and the recipients who can open them. The creator of the object has to close it.

    The threads are not asyncio's, because the DNS and TLS of all connections need asyncio's threads. All methods raise
    BackupFailed if the storage does not answer, and pass on the errors of the storage.
    """

    def __init__(self, storage: Storage, recipients: Sequence[pyrage.x25519.Recipient]) -> None:
        """`recipients` are public keys of age. Without recipients no snapshot is written."""
        self.recipients: Final = recipients
        self._storage = storage
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshots")
        self._changed: set[str] = set()
        """Names of the files that a thread may still change."""

    def close(self) -> None:
        """Accept no further work. Does not wait for running work: a storage that hangs must not delay the shutdown."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def location(self, name: str) -> str:
        """Return the location of a file for a status."""
        return f"{_IN_SECRETS}{name}" if isinstance(self._storage, SecretStorage) else name

    def name_at(self, location: str) -> str:
        """Return the file name of a location. Raises BackupFailed if the location is in another kind of storage."""
        in_secrets = location.startswith(_IN_SECRETS)
        if in_secrets is not isinstance(self._storage, SecretStorage):
            former, present = "Secrets", "a bucket or a volume"
            if not in_secrets:
                former, present = present, former
            raise BackupFailed(f"{location} is in {former}, and the operator keeps snapshots in {present} now")
        return location.removeprefix(_IN_SECRETS)

    @property
    def has_catalog(self) -> bool:
        """Whether the files have entries in a catalog. Secrets have none, because they are lost with the objects."""
        return not isinstance(self._storage, SecretStorage)

    async def remove(self, name: str) -> None:
        """Delete a file and its entry in the catalog, and the remains of a process that was killed during the write."""
        archive = ArchiveName.read(name)

        def work(storage: Storage) -> None:
            # Delete the entry first: an entry without a file would be imported.
            if archive is not None and self.has_catalog:
                storage.remove(archive.entry)
            storage.remove(name)

        await self.change(name, work, idle_seconds=_REMOVAL_SECONDS)

    async def describe(self, archive: ArchiveName, entry: CatalogEntry) -> None:
        """Write the entry of a file. Raises BackupFailed while other work changes the file."""
        content = entry.encoded()
        await self.change(
            archive.file, lambda storage: write_entry(storage, archive, content), idle_seconds=_REMOVAL_SECONDS
        )

    async def entry(self, archive: ArchiveName) -> CatalogEntry:
        """Read and validate the entry of a file."""
        return await self._run(lambda storage: CatalogEntry.read(storage, archive), idle_seconds=_REMOVAL_SECONDS)

    async def files(self) -> dict[str, str]:
        """List all files by name, each with a text that changes with the file."""
        return await self._run(lambda storage: storage.files(), idle_seconds=_LISTING_SECONDS)

    async def hide(self, archive: ArchiveName, *, cluster: str) -> None:
        """Hide the file from the importer of the management cluster with this uid."""
        name = hidden_name(archive, cluster=cluster)

        def work(storage: Storage) -> None:
            storage.remove(name)
            with storage.writer(name) as file:
                file.write(b"deleted in this management cluster\n")

        await self.change(name, work, idle_seconds=_REMOVAL_SECONDS)

    async def change(
        self,
        name: str,
        work: Callable[[Storage], _T],
        *,
        stop: Callable[[], None] | None = None,
        idle_seconds: float | None = None,
    ) -> _T:
        """Run blocking work that changes this file. Further work on the file fails until the thread has ended.

        Cancellation stops the work, and so do `idle_seconds` without progress of the storage. Stopping calls `stop`,
        and each later use of the storage by the work fails.
        """
        if name in self._changed:
            raise BackupFailed(f"the storage has not ended earlier work on {name}; check the storage")
        self._changed.add(name)
        return await self._run(work, stop=stop, idle_seconds=idle_seconds, ended=lambda: self._changed.discard(name))

    async def read(self, work: Callable[[Storage], _T], *, stop: Callable[[], None]) -> _T:
        """Run blocking work that only reads. Cancellation and timeouts stop the work, as in `change`."""
        return await self._run(work, stop=stop)

    async def _run(
        self,
        work: Callable[[Storage], _T],
        *,
        stop: Callable[[], None] | None = None,
        idle_seconds: float | None = None,
        ended: Callable[[], None] = lambda: None,
    ) -> _T:
        limit = _IDLE_SECONDS if idle_seconds is None else idle_seconds
        watched = _Watched(self._storage)
        submitted = self._threads.submit(work, watched)
        running = asyncio.wrap_future(submitted)

        def done(_: asyncio.Future[_T]) -> None:
            ended()
            if not running.cancelled():
                # asyncio reports errors that are never retrieved, and this work may be abandoned.
                running.exception()

        running.add_done_callback(done)
        try:
            while not running.done():
                if (rest := watched.moved + limit - time.monotonic()) <= 0:
                    raise BackupFailed(f"the storage did not answer within {limit:.0f} seconds; check the storage")
                await asyncio.wait([running], timeout=rest)
            return running.result()
        finally:
            if not running.done():
                watched.stop()
                if stop is not None:
                    stop()
                submitted.cancel()
                await asyncio.wait([running], timeout=_END_SECONDS)


class _Watched(Storage):
    """View of the storage for a single thread: records its progress, and fails after `stop`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stopped = False
        self.moved = time.monotonic()

    def stop(self) -> None:
        """Make the thread fail at its next piece."""
        self._stopped = True

    def move(self) -> None:
        """Record progress of the storage. Raises BackupFailed after `stop`."""
        self.moved = time.monotonic()
        if self._stopped:
            raise BackupFailed("the operator ended this work")

    @override
    def names(self) -> list[str]:
        return self._storage.names()

    @override
    def files(self) -> dict[str, str]:
        return self._storage.files()

    @override
    def prepare(self) -> list[str]:
        return self._storage.prepare()

    @override
    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[Writable]:
        with self._storage.writer(name) as file:
            yield _Writer(file, self)
            self.move()

    @override
    @contextlib.contextmanager
    def reader(self, name: str) -> Iterator[Readable]:
        with self._storage.reader(name) as file:
            yield _Reader(file, self)

    @override
    def remove(self, name: str) -> None:
        self._storage.remove(name)


class _Writer:
    def __init__(self, file: Writable, storage: _Watched) -> None:
        self._file = file
        self._storage = storage

    def write(self, data: bytes, /) -> int:
        written = self._file.write(data)
        self._storage.move()
        return written


class _Reader:
    def __init__(self, file: Readable, storage: _Watched) -> None:
        self._file = file
        self._storage = storage

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(size)
        self._storage.move()
        return data
