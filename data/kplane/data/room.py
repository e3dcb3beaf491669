"""The room in an etcd: how much of its quota is in use, and how an etcd that was full takes writes again.

An etcd that reaches its quota raises the alarm NOSPACE and refuses the writes of all tenants until an administrator
disarms it. So a copy stops before that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kplane.data import rpc
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.client import Client, Operation, Put
from kplane.data.errors import Compacted, NoRoom

__all__ = ["COPIED_SHARE", "Room", "RoomWatch", "check_room", "disarm", "room_in"]

COPIED_SHARE: Final = 0.9
"""Share of the quota that a copy may fill. The rest is for what others write meanwhile."""

_OVERHEAD: Final = 1.3
"""Bytes of the database for each byte of keys and values."""
_ROUND_BYTES: Final = 8 << 20
"""So much is written between two looks at the room. A follower has as much under way at once."""
_COMMIT_SECONDS: Final = 0.2
"""etcd commits every 100 ms, and tells the size of the last commit."""
_COMMITS: Final = 10
"""Commits to wait for: a busy etcd takes long for each."""
_CALL_SECONDS: Final = 10.0
_DEFRAGMENT_SECONDS: Final = 300.0
"""A member answers nothing meanwhile. It takes some 10 s for each GB."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much the database of an etcd has in use, history included, and its quota; in bytes."""

    used: int
    quota: int
    """0: the member does not tell it, as before etcd 3.6."""

    def has(self, size: int) -> bool:
        """Tell whether so many bytes of keys and values may be copied there."""
        return not self.quota or self.used + size * _OVERHEAD <= self.quota * COPIED_SHARE


async def room_in(client: Client) -> Room:
    """Ask the member that answers. Raises DataError."""
    status = await client.connection.call(rpc.STATUS, pb.StatusRequest(), timeout_seconds=_CALL_SECONDS)
    return Room(status.dbSizeInUse, status.dbSizeQuota)


async def check_room(client: Client, *, size: int = 0) -> None:
    """Raise NoRoom if a copy of so many bytes of keys and values would fill the etcd. Raises DataError."""
    found = await room_in(client)
    if not found.has(size):
        raise NoRoom(
            f"failed to copy the data: etcd at {client.endpoint} uses {found.used} bytes of its quota of {found.quota},"
            f" and a copy of {size} more bytes may fill {COPIED_SHARE:.0%} of it; delete data there, or raise its quota"
        )


class RoomWatch:
    """Looks at the room in an etcd while a copy is written there.

    etcd tells the size of its last commit, and a busy etcd commits late. So the watch adds what was written since a
    look that had all writes.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: int | None = None
        """Bytes in use at a look that had all writes; None before the first look."""
        self._written = 0
        """Bytes of keys and values since then."""
        self._looked = 0
        """How many of these were written before the last look."""
        self._lock = asyncio.Lock()

    async def before(self, batch: Sequence[Operation]) -> None:
        """Look before a transaction is written, if much was written since the last look. Raises NoRoom."""
        async with self._lock:
            self._written += sum(len(each.key) + len(each.value) for each in batch if isinstance(each, Put))
            if self._written - self._looked >= _ROUND_BYTES:
                await self._look()
                self._looked = self._written

    async def _look(self) -> None:
        # Writes of the last round may still be under way, and those of the next one come without a look.
        rounds = 2 * _ROUND_BYTES
        found = await room_in(self._client)
        if self._known is None:
            self._known = max(0, found.used - self._written)
        expected = self._known + int(self._written * _OVERHEAD)
        if replace(found, used=max(found.used, expected)).has(rounds):
            return
        for _ in range(_COMMITS):
            await asyncio.sleep(_COMMIT_SECONDS)
            found = await room_in(self._client)
            if found.used >= self._known + self._written - _ROUND_BYTES:
                break
            # Else a commit is late, or a compaction has freed more than was written.
        await check_room(self._client, size=rounds)
        self._known, self._written = found.used, 0


async def disarm(client: Client, *, member: Callable[[str], Client]) -> bool:
    """Have an etcd with the alarm NOSPACE take writes again, if most of its database is free; tell whether it does.

    The history is compacted and each member defragmented, because etcd compares its quota with the size of the file.
    Without that, it raises the alarm again. `member` returns a client of the member at a URL. Raises DataError.
    """
    get = pb.AlarmRequest(action=pb.AlarmRequest.GET)
    alarms = (await client.connection.call(rpc.ALARM, get, timeout_seconds=_CALL_SECONDS)).alarms
    full = [each.memberID for each in alarms if each.alarm == pb.NOSPACE]
    if not full:
        return False
    # etcd refuses all writes, so their authors gain more by this than readers of the history lose.
    compact = pb.CompactionRequest(revision=await client.revision(), physical=True)
    with contextlib.suppress(Compacted):
        await client.connection.call(rpc.COMPACT, compact, timeout_seconds=_DEFRAGMENT_SECONDS)
    leader = await client.members.leader()
    # The leader last: while it answers nothing, another member takes its place.
    urls = [each.client_url for each in sorted(await client.members.list(), key=lambda found: found.id == leader)]
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(url)) for url in urls]
        # Pages that one commit frees count as free after later ones. A full etcd takes no write that would make it
        # commit, and commits a change of the alarm. Each member compacts by itself, so each is asked: a member whose
        # file stays large raises the alarm again.
        for _ in range(_COMMITS):
            await _set_alarms(client, pb.AlarmRequest.DEACTIVATE, members=full)
            await _set_alarms(client, pb.AlarmRequest.ACTIVATE, members=full)
            await asyncio.sleep(_COMMIT_SECONDS)
            if all([(await room_in(own)).has(0) for own in members]):
                break
        else:
            return False
        for own in members:
            request = pb.DefragmentRequest()
            await own.connection.call(rpc.DEFRAGMENT, request, timeout_seconds=_DEFRAGMENT_SECONDS)
    await _set_alarms(client, pb.AlarmRequest.DEACTIVATE, members=full)
    return True


async def _set_alarms(client: Client, action: pb.AlarmRequest.AlarmAction, *, members: Iterable[int]) -> None:
    """Raise or disarm the alarm NOSPACE of these members."""
    for number in members:
        request = pb.AlarmRequest(action=action, memberID=number, alarm=pb.NOSPACE)
        await client.connection.call(rpc.ALARM, request, timeout_seconds=_CALL_SECONDS)
