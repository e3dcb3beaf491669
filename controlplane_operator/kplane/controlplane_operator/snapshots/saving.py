"""Writing of a snapshot as an encrypted stream, and verification of the file."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from kplane.controlplane_operator.backup.saving import Pulling, write
from kplane.controlplane_operator.backup.storage import digest_of
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Archived, Compacted, archive

__all__ = ["Saved", "save_snapshot"]


@dataclass(frozen=True, slots=True)
class Saved:
    """Snapshot whose file was read again after the write."""

    archived: Archived
    sha256: str


async def save_snapshot(source: Source, *, to: SnapshotStorage, name: str) -> Saved:
    """Write the data of the source to a file of this name, and verify the file. Memory is bounded.

    A failure leaves no file of that name. Raises BackupFailed, DataError and OSError.
    """
    header = {**source.header, "time": datetime.now(UTC).isoformat(timespec="seconds")}
    content = archive(source.client, source.prefix, header=header)
    pulled = Pulling(content.chunks(), loop=asyncio.get_running_loop())
    await to.remove(name)
    try:
        written = await _write(pulled, to=to, name=name)
    except (Exception, asyncio.CancelledError):
        with contextlib.suppress(BackupFailed, OSError):
            await to.remove(name)
        raise
    if content.archived is None:
        raise BackupFailed("the data were not read to their end")
    return Saved(content.archived, written)


async def _write(pulled: Pulling, *, to: SnapshotStorage, name: str) -> str:
    began = time.monotonic()
    try:
        written = await to.change(name, lambda storage: write(pulled, storage, name, to.recipients), stop=pulled.close)
    except Compacted as error:
        raise BackupFailed(_too_slow(pulled, seconds=time.monotonic() - began)) from error
    if await to.change(name, lambda storage: digest_of(storage, name)) != written:
        raise BackupFailed("what the storage returns is not what was written; check the storage")
    return written


def _too_slow(pulled: Pulling, *, seconds: float) -> str:
    """Return a message that names the slow side: etcd, or the storage."""
    remedy = "use a faster bucket or volume"
    if pulled.waited_seconds > seconds / 2:
        remedy = "give etcd and the operator more processor time, or delete objects of the control plane"
    return (
        "etcd compacted the revision before all of it was saved, and keeps one for 5 to 10 minutes: of"
        f" {seconds:.0f} s, the storage waited {pulled.waited_seconds:.0f} s for etcd; {remedy}"
    )
