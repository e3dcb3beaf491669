"""Snapshot of a whole etcd, read as a stream and checked against the hash that etcd sends with it."""

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
"""Length of the SHA-256 that follows the database. `etcdutl snapshot restore` checks the hash too."""

_IDLE_SECONDS: Final = 60.0


class SnapshotHash:
    """Checks a snapshot of a given size chunk by chunk, and reports at its end whether it is complete and undamaged."""

    def __init__(self, size: int) -> None:
        """`size` is the number of bytes, including the hash at the end."""
        self._left = size - HASH_BYTES
        self._hash = hashlib.sha256()
        self._sent = b""

    def update(self, chunk: bytes) -> None:
        """Add the next chunk."""
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
    """A snapshot that etcd has begun to send. The user of the connection must be `root`."""

    def __init__(self, first: pb.SnapshotResponse, rest: AsyncIterator[pb.SnapshotResponse]) -> None:
        """Use `take` to create a snapshot."""
        self.size: Final = len(first.blob) + first.remaining_bytes + HASH_BYTES
        """Bytes of the snapshot with the hash at its end; `etcdutl snapshot restore` reads such a file."""
        self._first = first.blob
        self._rest = rest

    @classmethod
    async def take(cls, connection: Connection, *, idle_seconds: float = _IDLE_SECONDS) -> Self:
        """Request a snapshot. `idle_seconds` limits the wait for each message. Raises DataError."""
        messages = connection.stream(rpc.SNAPSHOT, pb.SnapshotRequest(), idle_seconds=idle_seconds)
        async for first in messages:
            return cls(first, messages)
        raise SnapshotDamaged(f"etcd at {connection.endpoint} sent an empty snapshot")

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the chunks; call this once. Raises DataError, and SnapshotDamaged after the last chunk."""
        checksum = SnapshotHash(self.size)
        checksum.update(self._first)
        yield self._first
        async for message in self._rest:
            checksum.update(message.blob)
            yield message.blob
        checksum.check()
