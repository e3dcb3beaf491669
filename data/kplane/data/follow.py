"""Continuous copy of a prefix: below another prefix, or in another etcd.

The follower copies all keys at one revision of the source, and then each change. A key with a lease keeps the remaining
time of its lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from kplane.data import prefix as prefixes
from kplane.data.api_server import is_place
from kplane.data.backlog import Backlog
from kplane.data.client import (
    Absent,
    Client,
    Condition,
    Delete,
    DeleteRange,
    Equals,
    KeyValue,
    Operation,
    Put,
    Unchanged,
)
from kplane.data.compare import Digest
from kplane.data.errors import ConditionNotMet, DataError
from kplane.data.room import RoomWatch, check_room
from kplane.data.tally import Tally
from kplane.data.tasks import task_group
from kplane.data.template import COPY_MARK, batches, is_large
from kplane.data.watch import Change, Changes, changes

__all__ = ["Comparison", "Follower", "Place", "open_place"]

_MARKS: Final = b".follow/"
"""Beginning of mark keys. A watch that shows a mark has shown all earlier changes. No object has such a key."""
_WRITER: Final = b".follow-writer"
"""Key with the name of a target's writer. Each write compares the key, so late writes of a former writer fail."""
_CLOSED: Final = b"closed"
_SPARE_SECONDS: Final = 60
"""Seconds by which a target lease outlasts its source lease: keys of the target expire only with the source's keys."""
LARGEST_ANSWER: Final = 8 << 20
"""Limit for an answer to a follower's clients, in bytes: tenants decide how large their values are."""
_AT_ONCE: Final = 8


@dataclass(slots=True)
class Reading:
    """Content of a place, as the result of a read."""

    tally: Tally
    revision: int = 0
    old: dict[bytes, int] = field(default_factory=dict)
    """Revisions of the target's old keys. A new target is above the source's revision, so the mapping stays empty."""


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix in an etcd. Writes to the place compare `only_if`."""

    client: Client
    prefix: str
    only_if: tuple[Condition, ...] = ()

    async def apply(self, operations: list[Operation]) -> None:
        """Apply the operations in one transaction. Raises ConditionNotMet, and DataError."""
        await self.client.apply(operations, only_if=self.only_if)

    async def read(self, *, old_up_to: int = 0) -> Reading:
        """Read the tally of the place, without the keys that followers ignore. Raises DataError.

        A key is old if its revision is at most `old_up_to`; the result has the revisions of old keys.
        """
        head, reading = prefixes.checked(self.prefix), Reading(Tally())
        async for page in self.client.pages(self.prefix):
            reading.revision = page.revision
            for item in page.items:
                key = item.key.removeprefix(head)
                _note(reading.tally, key, item.value)
                if item.revision <= old_up_to:
                    reading.old[key] = item.revision
        return reading


async def open_place(place: Place) -> None:
    """Allow followers to write to a place again after `Follower.close`. Raises DataError."""
    await place.apply([Delete(prefixes.checked(place.prefix) + _WRITER)])


class Comparison:
    """Content of source and target at creation time. Equality is computed at once, and the digests on first use."""

    def __init__(self, source: Tally, target: Tally) -> None:
        """Copy the current tallies, which may change later."""
        self.equal: Final = source == target
        """Whether source and target have equal keys and values."""
        self._source = source.copy()
        self._target = self._source if self.equal else target.copy()

    @functools.cached_property
    def source(self) -> Digest:
        """Digest of the source."""
        return self._source.digest()

    @functools.cached_property
    def target(self) -> Digest:
        """Digest of the target."""
        return self.source if self.equal else self._target.digest()


class Follower:
    """Copies the keys below a place to another place, and keeps the copy up to date.

    Await `copy()`, then keep `run()` in a task. Call `catch_up()` when the source takes no more writes. After a crash,
    a new follower begins again with `copy`, which writes only differences. The follower must be the target's only
    writer until `close`, except for an API server's records about itself.
    """

    def __init__(self, source: Place, target: Place) -> None:
        self._name = uuid.uuid4().hex.encode()
        self._source, self._target = source, target
        self._from, self._to = prefixes.checked(source.prefix), prefixes.checked(target.prefix)
        self._held: tuple[Condition, ...] = target.only_if
        """Conditions of each write to the target."""
        self._held_shortly: tuple[Condition, ...] = target.only_if
        """Conditions of a write with a large value: shorter than the condition that an API server sends."""
        self._copied, self._written = Tally(), Tally()
        """Tallies of the source as copied, and of the target as its watch shows it."""
        self._leases: dict[int, int] = {}
        """Leases of the target, by the source lease."""
        self._shown = 0
        """Revision of the target that `_written` reflects."""
        self._room = RoomWatch(target.client)
        self._mark = _MARKS + self._name
        """Key of this follower's mark. A mark of another follower, before or after, has another key."""
        self._marked = 0
        self._awaited: dict[int, asyncio.Future[Comparison]] = {}
        """Callers of `catch_up`, by the number that the mark must have reached."""
        self._failed: DataError | None = None
        """Error that ended the last `run`."""
        self._behind_since: float | None = None
        self.revision = 0
        """Revision of the source that the target has; 0 before the first copy."""
        self.keys = 0
        """Number of operations written since the follower was created."""
        self.size = 0
        """Size of the written keys and values, in bytes."""

    @property
    def copied(self) -> int:
        """Number of the source's keys, as far as the follower has read them."""
        return len(self._copied)

    @property
    def lag_seconds(self) -> float:
        """Seconds for which the target has lacked changes of the source; 0 if the target is up to date."""
        return time.monotonic() - self._behind_since if self._behind_since is not None else 0.0

    async def copy(self) -> None:
        """Copy the source at one revision to the target, and delete the target's other keys.

        If the revision of a key is lower in the target than in the source, the key is written again, even with an equal
        value. The resourceVersion that clients see then never falls. This requires a target revision above the source's
        revision. Raises ConditionNotMet if the target is closed or has another owner, and NoRoom if its etcd is nearly
        full. Raises Compacted if etcd compacted the revision meanwhile: call `copy` again. Raises DataError.
        """
        await check_room(self._target.client)
        await self._take()
        # The source's revision is read before the target: target keys above this revision are above all copied keys.
        present = await self._source.client.revision(key=self._from)
        existing = await self._target.read(old_up_to=present)
        self._copied, self._written, self._shown = Tally(), existing.tally, existing.revision
        wrong, revision = self._written.keys(), 0
        slots = asyncio.Semaphore(_AT_ONCE)
        async with task_group() as tasks:
            async for page in self._source.client.pages(self._source.prefix):
                revision = page.revision
                for batch in batches(
                    [operation async for operation in self._differing(page.items, wrong, old=existing.old)]
                ):
                    await slots.acquire()
                    task = tasks.create_task(self._write(batch), name="write a batch of a copy")
                    task.add_done_callback(lambda _: slots.release())
        for batch in batches(Delete(self._to + key) for key in sorted(wrong)):
            await self._write(batch)
        self.revision = revision

    async def run(self) -> NoReturn:
        """Follow the source until cancelled. Raises DataError.

        After Compacted, call `copy` before the next `run`. After any other DataError, `run` may be called again.
        """
        waiting, self._failed = Backlog(), None
        try:
            async with task_group() as tasks:
                tasks.create_task(self._watch_source(waiting), name="watch the source of a copy")
                tasks.create_task(self._watch_target(), name="watch the target of a copy")
                tasks.create_task(self._follow(waiting), name="write what changes in the source of a copy")
        except DataError as error:
            self._failed = error
            for future in self._awaited.values():
                if not future.done():
                    future.set_exception(error)
            raise
        raise AssertionError("none of these tasks ends by itself")

    async def catch_up(self) -> Comparison:
        """Wait until the target has all current changes of the source, and compare. `run` must be running.

        The method writes a mark into the source. The mark follows all earlier writes, in the source and in the target.
        Raises DataError, also if `run` fails meanwhile.
        """
        self._marked += 1
        number = self._marked
        arrived: asyncio.Future[Comparison] = asyncio.get_running_loop().create_future()
        self._awaited[number] = arrived
        try:
            await self._source.apply([Put(self._from + self._mark, str(number).encode())])
            if self._failed is not None:
                raise self._failed
            return await arrived
        finally:
            del self._awaited[number]

    async def close(self) -> None:
        """Stop all followers from writing to the target, until `open_place`.

        Raises ConditionNotMet if another follower has taken over the target, and DataError.
        """
        await self._write([Put(self._to + _WRITER, _CLOSED), Delete(self._to + self._mark)])

    async def verify(self) -> Comparison:
        """Read both sides completely, and compare. Call this while the source takes no writes. Raises DataError."""
        source, target = await asyncio.gather(self._source.read(), self._target.read())
        return Comparison(source.tally, target.tally)

    async def forget(self) -> None:
        """Delete the marks of all followers on both sides. The writer key of the target stays. Raises DataError."""
        for place, head in ((self._source, self._from), (self._target, self._to)):
            await place.apply([DeleteRange(head + _MARKS, head + prefixes.range_end(_MARKS))])

    async def _take(self) -> None:
        """Write this follower's name to the writer key, unless the target is closed. Later writes compare the name."""
        key = self._to + _WRITER
        writer = await self._target.client.get(key)
        if writer is not None and writer.value == _CLOSED:
            raise ConditionNotMet(f"{self._target.prefix} is closed to followers: it is in use")
        before: Condition = Equals(key, writer.value) if writer is not None else Absent(key)
        taken = await self._target.client.apply([Put(key, self._name)], only_if=(*self._target.only_if, before))
        self._held = (*self._target.only_if, Equals(key, self._name))
        self._held_shortly = (Unchanged(key, taken.revision),)

    async def _differing(
        self, items: Iterable[KeyValue], wrong: set[bytes], *, old: Mapping[bytes, int]
    ) -> AsyncIterator[Operation]:
        """Yield the operations for a page, and remove its keys from `wrong`, the keys to delete in the target."""
        for item in items:
            key = item.key.removeprefix(self._from)
            if _is_left_out(key):
                continue
            # A tally has no leases, so a key with a lease is always written again.
            fell = old.get(key, item.revision) < item.revision
            if not item.lease and not fell and self._written.has(key, item.value):
                wrong.discard(key)
                self._copied.put(key, item.value)
            elif (put := await self._put(key, item.value, lease=item.lease)) is not None:
                wrong.discard(key)
                self._copied.put(key, item.value)
                yield put

    async def _put(self, key: bytes, value: bytes, *, lease: int) -> Put | None:
        """Return the operation that writes a key to the target; None if the key's lease has expired."""
        if lease and lease not in self._leases:
            left = await self._source.client.lease_seconds(lease)
            if left <= 0:
                return None
            self._leases[lease] = await self._target.client.grant_lease(left + _SPARE_SECONDS)
        return Put(self._to + key, value, lease=self._leases[lease] if lease else 0)

    async def _watch_source(self, waiting: Backlog) -> None:
        watched = changes(self._source.client, self._source.prefix, after=self.revision)
        async with contextlib.aclosing(watched) as groups:
            async for group in groups:
                if self._behind_since is None:
                    self._behind_since = time.monotonic()
                await waiting.put(group)

    async def _watch_target(self) -> None:
        watched = changes(self._target.client, self._target.prefix, after=self._shown)
        async with contextlib.aclosing(watched) as groups:
            async for group in groups:
                self._see(group)

    def _see(self, group: Changes) -> None:
        marked = 0
        for change in group.items:
            key = change.key.removeprefix(self._to)
            _note(self._written, key, change.value)
            if key == self._mark and change.value is not None:
                marked = int(change.value)
        self._shown = group.revision
        arrived = [future for number, future in self._awaited.items() if number <= marked and not future.done()]
        if arrived:
            comparison = Comparison(self._copied, self._written)
            for future in arrived:
                future.set_result(comparison)

    async def _follow(self, waiting: Backlog) -> NoReturn:
        while True:
            groups = await waiting.take()
            # Only the last change of a key is written: a transaction may contain a key only once.
            latest: dict[bytes, Change] = {}
            for change in (change for group in groups for change in group.items):
                key = change.key.removeprefix(self._from)
                # Sort the keys by their last change, so that a mark stays behind all earlier changes.
                former = latest.pop(key, None)
                latest[key] = _later_mark(former, change) if key == self._mark else change
                _note(self._copied, key, change.value)
            operations = [
                operation for key, change in latest.items() if (operation := await self._operation(key, change))
            ]
            for batch in batches(operations):
                await self._write(batch)
            self.revision = groups[-1].revision
            if waiting.empty:
                self._behind_since = None

    async def _operation(self, key: bytes, change: Change) -> Operation | None:
        if key != self._mark and _is_left_out(key):
            return None
        put = None if change.value is None else await self._put(key, change.value, lease=change.lease)
        return put or Delete(self._to + key)

    async def _write(self, batch: list[Operation]) -> None:
        await self._room.before(batch)
        await self._target.client.apply(batch, only_if=self._held_shortly if is_large(batch) else self._held)
        self.keys += len(batch)
        self.size += sum(len(operation.key) + len(operation.value) for operation in batch if isinstance(operation, Put))


def _later_mark(former: Change | None, change: Change) -> Change:
    """Return the mark with the higher number: concurrent calls of `catch_up` may write theirs in another order."""
    if former is None or former.value is None or change.value is None or int(former.value) < int(change.value):
        return change
    return former


def _note(tally: Tally, key: bytes, value: bytes | None) -> None:
    if _is_left_out(key):
        return
    if value is None:
        tally.delete(key)
    else:
        tally.put(key, value)


def _is_left_out(key: bytes) -> bool:
    return key in (COPY_MARK, _WRITER) or key.startswith(_MARKS) or is_place(key)
