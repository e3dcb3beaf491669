"""Where the data of a new control plane come from: the file of a snapshot, or the etcd of another control plane."""

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
    """Keys without prefix, and values. They can be read several times, and are the same each time."""

    def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read all. Raises at the end unless it was all: BackupFailed, DataError and OSError."""
        ...


class SavedOrigin:
    """The file of a snapshot, whose SHA-256 the status of the new control plane has."""

    def __init__(
        self, storage: SnapshotStorage, restore: RestoreStatus, *, keys: Sequence[pyrage.x25519.Identity]
    ) -> None:
        """`keys` are private keys of age."""
        if restore.location is None or restore.sha256 is None:
            raise BackupFailed("the control plane has no snapshot to begin with")
        self._storage = storage
        self._name, self._sha256 = storage.name_at(restore.location), restore.sha256
        self._keys = keys
        self.archived: Archived | None = None
        """What the file has; known after it was read once."""

    async def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read the file."""
        opened = OpenedSnapshot(self._storage, self._name, keys=self._keys, sha256=self._sha256)
        async for pairs in opened.pairs():
            yield pairs
        self.archived = opened.end()


class LivingOrigin:
    """The etcd of a control plane, at the revision that it has when it is first read."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._revision = 0

    async def pairs(self) -> AsyncIterator[list[Pair]]:
        """Read the etcd. What has a lease of etcd, such as Events, is left out."""
        head, client = prefix.checked(self._source.prefix), self._source.client
        async for page in client.pages(self._source.prefix, size=_PAGE, revision=self._revision):
            self._revision = page.revision
            yield [(item.key.removeprefix(head), item.value) for item in page.items if not item.lease]
