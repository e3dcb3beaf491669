"""Origins of the data of a new control plane: the file of a snapshot, or the etcd of another control plane."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, Protocol

import pyrage

from kplane.api import RestoreStatus
from kplane.controlplane_operator.errors import BackupFailed
from kplane.controlplane_operator.snapshots.opening import OpenedSnapshot
from kplane.controlplane_operator.snapshots.source import Source
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.data import Archived, Pair, prefix

__all__ = ["LivingOrigin", "Origin", "SavedOrigin"]

_PAGE: Final = 200


class Origin(Protocol):
    """Keys without prefix, and their values. Several reads return the same data."""

    def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read all pairs. Raises BackupFailed, DataError or OSError at the end if the data are incomplete."""
        ...


class SavedOrigin:
    """File of a snapshot. The status of the new control plane has the SHA-256 of the file."""

    def __init__(
        self, storage: SnapshotStorage, restore: RestoreStatus, *, keys: Sequence[pyrage.x25519.Identity]
    ) -> None:
        """`keys` are private keys of age. Raises BackupFailed if the status has no location or no SHA-256."""
        if restore.location is None or restore.sha256 is None:
            raise BackupFailed("the control plane has no snapshot to begin with")
        self._storage = storage
        self._name, self._sha256 = storage.name_at(restore.location), restore.sha256
        self._keys = keys
        self.archived: Archived | None = None
        """Totals of the archive; None until the file was read to its end once."""

    async def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read the file. Raises BackupFailed, ArchiveDamaged and OSError."""
        opened = OpenedSnapshot(self._storage, self._name, keys=self._keys, sha256=self._sha256)
        async for pairs in opened.pairs():
            yield pairs
        self.archived = opened.end()


class LivingOrigin:
    """Etcd of a control plane, at the revision of the first read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._revision = 0

    async def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read the etcd. Keys with a lease of etcd, such as Events, are left out."""
        head, client = prefix.checked(self._source.prefix), self._source.client
        async for page in client.pages(self._source.prefix, size=_PAGE, revision=self._revision):
            self._revision = page.revision
            yield [(item.key.removeprefix(head), item.value) for item in page.items if not item.lease]
