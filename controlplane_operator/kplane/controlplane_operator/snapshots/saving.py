"""Writes one snapshot as a stream, encrypted, and reads it again."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from kplane.controlplane_operator.backup.saving import Pulling, write
from kplane.controlplane_operator.backup.storage import Storage
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Archived, archive

__all__ = ["Saved", "save_snapshot"]

_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Saved:
    """A snapshot that was read again."""

    archived: Archived
    sha256: str


async def save_snapshot(source: Source, *, to: SnapshotStorage, name: str) -> Saved:
    """Write what the source has to a file of this name, and read it again. Memory is bounded.

    Nothing of that name is left after a failure. Raises BackupFailed, DataError and OSError.
    """
    header = {**source.header, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    made = archive(source.client, source.prefix, header=header)
    pulled = Pulling(made.chunks(), loop=asyncio.get_running_loop())
    await to.remove(name)
    try:
        written = await to.change(name, lambda storage: write(pulled, storage, name, to.recipients), stop=pulled.close)
        await to.change(name, lambda storage: _check(storage, name, pulled, expected=written), stop=pulled.close)
    except (Exception, asyncio.CancelledError):
        with contextlib.suppress(BackupFailed, OSError):
            await to.remove(name)
        raise
    if made.archived is None:
        raise BackupFailed("the data were not read to their end")
    return Saved(made.archived, written)


def _check(storage: Storage, name: str, pulled: Pulling, *, expected: str) -> None:
    found = hashlib.sha256()
    with storage.reader(name) as file:
        while chunk := file.read(_CHUNK):
            if pulled.closed:
                raise BackupFailed("the operator ends")
            found.update(chunk)
    if found.hexdigest() != expected:
        raise BackupFailed("what the storage returns is not what was written; check the storage")
