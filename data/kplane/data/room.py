"""Free space of an etcd: how much of its quota is in use, and how a full etcd accepts writes again.

An etcd that reaches its quota raises the alarm NOSPACE, and refuses the writes of all tenants until an administrator
disarms the alarm. A copy therefore stops before the quota.
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
"""Share of the quota that a copy may fill. The rest is for concurrent writes of others."""

_OVERHEAD: Final = 1.3
"""Bytes in the database for each byte of keys and values."""
_ROUND_BYTES: Final = 8 << 20
"""Bytes written between two checks. A follower has as many bytes in flight at once."""
_COMMIT_SECONDS: Final = 0.2
"""Interval between checks, in seconds. etcd commits every 100 ms, and reports the size at the last commit."""
_COMMITS: Final = 10
"""Maximum number of commits to wait for: each commit of a busy etcd takes long."""
_CALL_SECONDS: Final = 10.0
_DEFRAGMENT_SECONDS: Final = 300.0
"""Timeout of a defragmentation. The member answers no call meanwhile; it takes about 10 s per GB."""


@dataclass(frozen=True, slots=True)
class Room:
    """Size in use of an etcd's database, history included, and its quota, in bytes."""

    used: int
    quota: int
    """0 if the member does not report its quota, as before etcd 3.6."""

    def has(self, size: int) -> bool:
        """Return whether a copy may add this many bytes of keys and values; always true if the quota is unknown."""
        return not self.quota or self.used + size * _OVERHEAD <= self.quota * COPIED_SHARE


async def room_in(client: Client) -> Room:
    """Return the room of the member that answers. Raises DataError."""
    status = await client.connection.call(rpc.STATUS, pb.StatusRequest(), timeout_seconds=_CALL_SECONDS)
    return Room(status.dbSizeInUse, status.dbSizeQuota)


async def check_room(client: Client, *, size: int = 0) -> None:
    """Raise NoRoom if a copy of `size` bytes of keys and values would fill the etcd. Raises DataError."""
    room = await room_in(client)
    if not room.has(size):
        raise NoRoom(
            f"failed to copy the data: etcd at {client.endpoint} uses {room.used} bytes of its quota of {room.quota},"
            f" and a copy of {size} more bytes may fill {COPIED_SHARE:.0%} of it; delete data there, or raise its quota"
        )


class RoomWatch:
    """Checks the room in an etcd during a copy.

    etcd reports the size at its last commit, and a busy etcd commits late. The watch therefore adds the bytes written
    since its last complete check, when all earlier writes were committed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: int | None = None
        """Bytes in use at the last complete check; None before the first check."""
        self._written = 0
        """Bytes of keys and values written since the last complete check."""
        self._looked = 0
        """Value of `_written` at the last check."""
        self._lock = asyncio.Lock()

    async def before(self, batch: Sequence[Operation]) -> None:
        """Check the room before a transaction, if `_ROUND_BYTES` were written since the last check. Raises NoRoom."""
        async with self._lock:
            self._written += sum(
                len(operation.key) + len(operation.value) for operation in batch if isinstance(operation, Put)
            )
            if self._written - self._looked >= _ROUND_BYTES:
                await self._look()
                self._looked = self._written

    async def _look(self) -> None:
        # Writes of the last round may still be in flight, and writes of the next round come without a check.
        rounds = 2 * _ROUND_BYTES
        room = await room_in(self._client)
        if self._known is None:
            self._known = max(0, room.used - self._written)
        expected = self._known + int(self._written * _OVERHEAD)
        if replace(room, used=max(room.used, expected)).has(rounds):
            return
        for _ in range(_COMMITS):
            await asyncio.sleep(_COMMIT_SECONDS)
            room = await room_in(self._client)
            if room.used >= self._known + self._written - _ROUND_BYTES:
                break
            # Otherwise a commit is late, or a compaction has freed more than the copy wrote.
        await check_room(self._client, size=rounds)
        self._known, self._written = room.used, 0


async def disarm(client: Client, *, member: Callable[[str], Client]) -> bool:
    """Disarm the alarm NOSPACE if each database then has room. Return whether etcd accepts writes again.

    The function compacts the history and defragments each member, because etcd compares its quota with the file size.
    Without this, etcd raises the alarm again. A member has room if at most `COPIED_SHARE` of its quota is in use.
    `member` returns a client for the URL of a member. Returns False without an alarm NOSPACE. Raises DataError.
    """
    get = pb.AlarmRequest(action=pb.AlarmRequest.GET)
    alarms = (await client.connection.call(rpc.ALARM, get, timeout_seconds=_CALL_SECONDS)).alarms
    full = [item.memberID for item in alarms if item.alarm == pb.NOSPACE]
    if not full:
        return False
        # etcd refuses all writes: disarming helps writers more than a compaction harms readers of the history.
    compact = pb.CompactionRequest(revision=await client.revision(), physical=True)
    with contextlib.suppress(Compacted):
        await client.connection.call(rpc.COMPACT, compact, timeout_seconds=_DEFRAGMENT_SECONDS)
    leader = await client.members.leader()
    # The leader comes last: while the leader is defragmented and silent, another member takes its place.
    urls = [item.client_url for item in sorted(await client.members.list(), key=lambda found: found.id == leader)]
    async with contextlib.AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member(url)) for url in urls]
        # Pages that one commit frees count as free after later commits. A full etcd accepts no write that would cause a
        # commit, but commits a change of the alarm. Each member compacts by itself, so the loop waits for each member:
        # a member whose file stays large raises the alarm again.
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
    """Raise or disarm the alarm NOSPACE for each of these members."""
    for number in members:
        request = pb.AlarmRequest(action=action, memberID=number, alarm=pb.NOSPACE)
        await client.connection.call(rpc.ALARM, request, timeout_seconds=_CALL_SECONDS)
