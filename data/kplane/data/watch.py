"""What changes below a prefix, as it happens."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from kplane.data import prefix as prefixes
from kplane.data import rpc
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.client import Client
from kplane.data.errors import Compacted, EtcdError, PermissionDenied

__all__ = ["Change", "Changes", "changes"]

_BEGIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """A key that was written or deleted."""

    key: bytes
    value: bytes | None
    """None: it was deleted, or its lease ended."""
    lease: int = 0
    """Of etcd, with which the key ends; 0 if it has none."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened up to a revision, in order. Changes of one revision are never parted."""

    revision: int
    items: tuple[Change, ...]

    @property
    def size(self) -> int:
        """Bytes of the keys and values."""
        return sum(len(each.key) + len(each.value or b"") for each in self.items)


async def changes(client: Client, prefix: str, *, after: int) -> AsyncGenerator[Changes]:
    """Give the changes below a prefix that come after a revision, without an end.

    Raises DataError: InvalidPrefix, Compacted if etcd has no history since that revision, and what ends the stream.
    """
    start = prefixes.checked(prefix)
    create = pb.WatchCreateRequest(
        key=start, range_end=prefixes.range_end(start), start_revision=after + 1, fragment=True
    )
    request = pb.WatchRequest(create_request=create)
    items, revision = list[Change](), after
    # So many of the items belong to revisions up to `until`, of which nothing is missing.
    complete, until = 0, after
    stream = client.connection.subscribe(rpc.WATCH, request, begin_seconds=_BEGIN_SECONDS)
    async with contextlib.aclosing(stream) as answers:
        async for answer in answers:
            if answer.canceled:
                raise _ended(client, answer)
            for event in answer.events:
                if event.kv.mod_revision != revision and items:
                    complete, until = len(items), revision
                items.append(_change(event))
                revision = event.kv.mod_revision
            if not answer.fragment:
                complete, until = len(items), revision
            # A watcher that is behind gets a thousand revisions in one answer: its fragments are not put together.
            if complete:
                yield Changes(until, tuple(items[:complete]))
                items, complete = items[complete:], 0


def _change(event: pb.Event) -> Change:
    deleted = event.type == pb.Event.DELETE
    return Change(event.kv.key, None if deleted else event.kv.value, event.kv.lease)


def _ended(client: Client, answer: pb.WatchResponse) -> EtcdError:
    told = f"failed to watch etcd at {client.endpoint}: "
    if answer.compact_revision:
        return Compacted(f"{told}its history begins at revision {answer.compact_revision}")
    kind = PermissionDenied if "permission denied" in answer.cancel_reason.lower() else EtcdError
    return kind(f"{told}{answer.cancel_reason or 'etcd ended the watch'}")
