"""Watch of a prefix: yields the changes of its keys as they happen."""

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
    """None if the key was deleted, or its lease expired."""
    lease: int = 0
    """Id of the etcd lease with which the key expires; 0 if the key has no lease."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes up to a revision, in order. Changes of a revision are never split between two groups."""

    revision: int
    items: tuple[Change, ...]

    @property
    def size(self) -> int:
        """Size of the keys and values, in bytes."""
        return sum(len(change.key) + len(change.value or b"") for change in self.items)


async def changes(client: Client, prefix: str, *, after: int) -> AsyncGenerator[Changes]:
    """Yield the changes below a prefix after a revision, without an end.

    Raises InvalidPrefix, Compacted if etcd no longer has the history since that revision, and DataError if the stream
    fails.
    """
    start = prefixes.checked(prefix)
    create = pb.WatchCreateRequest(
        key=start, range_end=prefixes.range_end(start), start_revision=after + 1, fragment=True
    )
    request = pb.WatchRequest(create_request=create)
    items, revision = list[Change](), after
    # The first `complete` items are all changes up to revision `until`.
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
            # A watcher that is behind gets a thousand revisions in one answer. Complete revisions are therefore yielded
            # at each fragment, without the last fragment.
            if complete:
                yield Changes(until, tuple(items[:complete]))
                items, complete = items[complete:], 0


def _change(event: pb.Event) -> Change:
    deleted = event.type == pb.Event.DELETE
    return Change(event.kv.key, None if deleted else event.kv.value, event.kv.lease)


def _ended(client: Client, answer: pb.WatchResponse) -> EtcdError:
    failure = f"failed to watch etcd at {client.endpoint}: "
    if answer.compact_revision:
        return Compacted(f"{failure}its history begins at revision {answer.compact_revision}")
    kind = PermissionDenied if "permission denied" in answer.cancel_reason.lower() else EtcdError
    return kind(f"{failure}{answer.cancel_reason or 'etcd ended the watch'}")
