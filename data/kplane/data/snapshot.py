"""A snapshot of a whole etcd, read as a stream and checked against the hash that etcd sends with it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Final, Self

from kplane.data import rpc
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.connection import Connection
from kplane.data.errors import SnapshotDamaged

__all__ = ["HASH_BYTES", "Snapshot", "SnapshotHash"]

HASH_BYTES: Final = 32
"""SHA-256 of the database, behind the database: `etcdutl snapshot restore` checks it too."""

_IDLE_SECONDS: Final = 60.0


class SnapshotHash:
    """Reads a snapshot of a known size piece by piece, and tells at its end whether it is whole."""

    def __init__(self, size: int) -> None:
        """`size` counts the hash at the end too."""
        self._left = size - HASH_BYTES
        self._hash = hashlib.sha256()
        self._sent = b""

    def update(self, chunk: bytes) -> None:
        """Take the next piece."""
        body = chunk[: self._left]
        self._hash.update(body)
        self._left -= len(body)
        self._sent += chunk[len(body) :]

    def check(self) -> None:
        """Raise SnapshotDamaged unless the snapshot is complete and its hash is right."""
        if self._left or len(self._sent) != HASH_BYTES:
            raise SnapshotDamaged(f"a snapshot of etcd is not complete: {self._left + HASH_BYTES} bytes are missing")
        if self._hash.digest() != self._sent:
            raise SnapshotDamaged("a snapshot of etcd is damaged: its SHA-256 is not the one that etcd sent")


class Snapshot:
    """A snapshot that etcd has begun to send. Its user must be `root`."""

    def __init__(self, first: pb.SnapshotResponse, rest: AsyncIterator[pb.SnapshotResponse]) -> None:
        """Use `take`."""
        self.size: Final = len(first.blob) + first.remaining_bytes + HASH_BYTES
        """Bytes of the snapshot with the hash at its end: a file that `etcdutl snapshot restore` reads."""
        self._first = first.blob
        self._rest = rest

    @classmethod
    async def take(cls, connection: Connection, *, idle_seconds: float = _IDLE_SECONDS) -> Self:
        """Ask for a snapshot. `idle_seconds` bounds each wait for its next piece. Raises DataError."""
        messages = connection.stream(rpc.SNAPSHOT, pb.SnapshotRequest(), idle_seconds=idle_seconds)
        async for first in messages:
            return cls(first, messages)
        raise SnapshotDamaged(f"etcd at {connection.endpoint} sent an empty snapshot")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Read it, once. Raises DataError; SnapshotDamaged after the last piece if what came is not whole."""
        found = SnapshotHash(self.size)
        found.update(self._first)
        yield self._first
        async for message in self._rest:
            found.update(message.blob)
            yield message.blob
        found.check()
