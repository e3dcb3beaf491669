"""The storage of snapshots. Work in it has threads of its own, and is given up if the storage hangs."""

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
"""Two snapshots, two restores and removals need five. The others are for work that hangs."""
_IDLE_SECONDS: Final = 600.0
"""A bucket answers or fails within five minutes. A volume may take longer to write a large file to its disks."""
_REMOVAL_SECONDS: Final = 60.0
"""Less than the time for one look at a snapshot."""
_LISTING_SECONDS: Final = 300.0
_END_SECONDS: Final = 10.0
"""So long a thread is waited for that was told to end."""


class SnapshotStorage:
    """Where snapshots are, and who can open them. Who opens it closes it.

    The threads are not asyncio's, because DNS and TLS of all connections need those. All methods raise BackupFailed if
    the storage does not answer, and what the storage raises.
    """

    def __init__(self, storage: Storage, recipients: Sequence[pyrage.x25519.Recipient]) -> None:
        """Without recipients nothing is written."""
        self.recipients: Final = recipients
        self._storage = storage
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="snapshots")
        self._changed: set[str] = set()
        """Names of files that a thread may still change."""

    def close(self) -> None:
        """Begin no further work. Waits for none: a storage that hangs must not hold up the end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def location(self, name: str) -> str:
        """Return where a file is, as a status says it."""
        return f"{_IN_SECRETS}{name}" if isinstance(self._storage, SecretStorage) else name

    def name_at(self, location: str) -> str:
        """Return the name of the file at a location. Raises BackupFailed if it is in another kind of storage."""
        in_secrets = location.startswith(_IN_SECRETS)
        if in_secrets is not isinstance(self._storage, SecretStorage):
            former, present = "Secrets", "a bucket or a volume"
            if not in_secrets:
                former, present = present, former
            raise BackupFailed(f"{location} is in {former}, and the operator keeps snapshots in {present} now")
        return location.removeprefix(_IN_SECRETS)

    @property
    def has_catalog(self) -> bool:
        """Whether the files have entries in a catalogue. Secrets have none: they are lost with the objects."""
        return not isinstance(self._storage, SecretStorage)

    async def remove(self, name: str) -> None:
        """Delete a file with its entry in the catalogue, and what a killed process left of it."""
        archive = ArchiveName.read(name)

        def work(storage: Storage) -> None:
            # The entry first: without a file it would be imported.
            if archive is not None and self.has_catalog:
                storage.remove(archive.entry)
            storage.remove(name)

        await self.change(name, work, idle_seconds=_REMOVAL_SECONDS)

    async def describe(self, archive: ArchiveName, entry: CatalogEntry) -> None:
        """Write the entry of a file, while no other work changes the file."""
        content = entry.encoded()
        await self.change(
            archive.file, lambda storage: write_entry(storage, archive, content), idle_seconds=_REMOVAL_SECONDS
        )

    async def entry(self, archive: ArchiveName) -> CatalogEntry:
        """Read the entry of a file, and check it."""
        return await self._run(lambda storage: CatalogEntry.read(storage, archive), idle_seconds=_REMOVAL_SECONDS)

    async def files(self) -> dict[str, str]:
        """List all files by name, each with a text that is another one after a change."""
        return await self._run(lambda storage: storage.files(), idle_seconds=_LISTING_SECONDS)

    async def hide(self, archive: ArchiveName, *, cluster: str) -> None:
        """Keep the management cluster of this uid from importing the file again."""
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
        """Do blocking work that changes this file. Further work on the file fails until the thread has ended.

        If this is cancelled, or the storage moves no byte for `idle_seconds`, the work is to end: its storage fails
        from then on, and `stop` is called.
        """
        if name in self._changed:
            raise BackupFailed(f"the storage has not ended earlier work on {name}; check the storage")
        self._changed.add(name)
        return await self._run(work, stop=stop, idle_seconds=idle_seconds, ended=lambda: self._changed.discard(name))

    async def read(self, work: Callable[[Storage], _T], *, stop: Callable[[], None]) -> _T:
        """Do blocking work that changes nothing; ends as `change` does."""
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
                # asyncio reports errors that are not looked at, and this work may be given up.
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
    """The storage as one thread uses it: tells when it moved, and fails after `stop`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._stopped = False
        self.moved = time.monotonic()

    def stop(self) -> None:
        """Have the thread end with its next piece."""
        self._stopped = True

    def move(self) -> None:
        """Note that the storage has answered. Raises BackupFailed after `stop`."""
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
        found = self._file.read(size)
        self._storage.move()
        return found
