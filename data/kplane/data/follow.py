"""A copy of a prefix that follows it: below another prefix, or in another etcd.

All keys are copied at one revision of the source, and then each change. A key keeps the time that its lease has left.
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
"""Names of keys that are written last: where one is seen, all before it has come. No object has such a name."""
_WRITER: Final = b".follow-writer"
"""Who writes into a target: each write compares it. So one that was cut off and comes back late changes nothing."""
_CLOSED: Final = b"closed"
_SPARE_SECONDS: Final = 60
"""So much longer a lease of the target lasts: its keys end with those of the source, and not before."""
LARGEST_ANSWER: Final = 8 << 20
"""What the clients of a follower should take at once: tenants decide how large their values are."""
_AT_ONCE: Final = 8


@dataclass(slots=True)
class Reading:
    """What a place had at one moment."""

    tally: Tally
    revision: int = 0
    old: dict[bytes, int] = field(default_factory=dict)
    """The revisions of old keys: without those of all other keys, it is empty for a new home."""


@dataclass(frozen=True, slots=True)
class Place:
    """A prefix in an etcd. What is written there compares `only_if`."""

    client: Client
    prefix: str
    only_if: tuple[Condition, ...] = ()

    async def apply(self, operations: list[Operation]) -> None:
        """Make the changes in one transaction. Raises DataError."""
        await self.client.apply(operations, only_if=self.only_if)

    async def read(self, *, old_up_to: int = 0) -> Reading:
        """Read what is there, but for what is left out. Raises DataError.

        A key counts as old if its revision is at most `old_up_to`.
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
    """Let followers write to a place again that `Follower.close` has closed. Raises DataError."""
    await place.apply([Delete(prefixes.checked(place.prefix) + _WRITER)])


class Comparison:
    """What both sides had at one moment. Whether they are equal is known at once; their digests are made when asked."""

    def __init__(self, source: Tally, target: Tally) -> None:
        """Keep both as they are now."""
        self.equal: Final = source == target
        """Whether keys and values are the same."""
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
    """Makes the keys below one place those below another one, and keeps them so.

    Use: `await copy()`, then `run()` in a task until the end, and `catch_up()` when the source takes no more writes. If
    the process dies, a new one begins again with `copy`, which writes only what differs. Only the follower may write to
    the target meanwhile, but for what an API server says of itself. Before others may, `close` it.
    """

    def __init__(self, source: Place, target: Place) -> None:
        self._name = uuid.uuid4().hex.encode()
        self._source, self._target = source, target
        self._from, self._to = prefixes.checked(source.prefix), prefixes.checked(target.prefix)
        self._held: tuple[Condition, ...] = target.only_if
        """What each write to the target compares."""
        self._held_shortly: tuple[Condition, ...] = target.only_if
        """What a write compares that has a large value: a condition that is shorter than one of an API server."""
        self._copied, self._written = Tally(), Tally()
        """Of the source as it was copied, and of the target as its watch tells."""
        self._leases: dict[int, int] = {}
        """In the target, by those in the source."""
        self._shown = 0
        """The revision of the target that `_written` is of."""
        self._room = RoomWatch(target.client)
        self._mark = _MARKS + self._name
        """Its own, so that a follower that ended and one that begins do not hide each other's."""
        self._marked = 0
        self._awaited: dict[int, asyncio.Future[Comparison]] = {}
        """By what the mark has to be at least."""
        self._failed: DataError | None = None
        """Why `run` ended last."""
        self._behind_since: float | None = None
        self.revision = 0
        """Of the source, that the target has; 0 before the first copy."""
        self.keys = 0
        """Written since the begin."""
        self.size = 0
        """Bytes of these keys and values."""

    @property
    def copied(self) -> int:
        """Number of keys that the source has, as far as they were read."""
        return len(self._copied)

    @property
    def lag_seconds(self) -> float:
        """For how long there have been changes that are not in the target yet."""
        return time.monotonic() - self._behind_since if self._behind_since is not None else 0.0

    async def copy(self) -> None:
        """Have the target have what the source has at one revision. Keys that the source lacks are deleted there.

        A key whose revision is lower in the target than in the source is written again, even with the same value: what
        clients see as the resourceVersion of an object never falls. That needs a target above the source's revision.
        Raises DataError: ConditionNotMet if the target is closed or another owner's, NoRoom if its etcd is nearly full,
        and Compacted if etcd compacted the revision meanwhile; then call it again.
        """
        await check_room(self._target.client)
        await self._take()
        # First the source's revision: a key of the target that is above it is above all that is copied.
        present = await self._source.client.revision(key=self._from)
        there = await self._target.read(old_up_to=present)
        self._copied, self._written, self._shown = Tally(), there.tally, there.revision
        wrong, revision = self._written.keys(), 0
        slots = asyncio.Semaphore(_AT_ONCE)
        async with task_group() as tasks:
            async for page in self._source.client.pages(self._source.prefix):
                revision = page.revision
                for batch in batches([each async for each in self._differing(page.items, wrong, old=there.old)]):
                    await slots.acquire()
                    task = tasks.create_task(self._write(batch), name="write a batch of a copy")
                    task.add_done_callback(lambda _: slots.release())
        for batch in batches(Delete(self._to + key) for key in sorted(wrong)):
            await self._write(batch)
        self.revision = revision

    async def run(self) -> NoReturn:
        """Follow until cancelled. Raises DataError.

        After Compacted, call `copy` before the next `run`. After any other one, `run` may be called again.
        """
        waiting, self._failed = Backlog(), None
        try:
            async with task_group() as tasks:
                tasks.create_task(self._watch_source(waiting), name="watch the source of a copy")
                tasks.create_task(self._watch_target(), name="watch the target of a copy")
                tasks.create_task(self._follow(waiting), name="write what changes in the source of a copy")
        except DataError as error:
            self._failed = error
            for each in self._awaited.values():
                if not each.done():
                    each.set_exception(error)
            raise
        raise AssertionError("none of these tasks ends by itself")

    async def catch_up(self) -> Comparison:
        """Wait until the target has all that the source has now, and compare. `run` has to be running meanwhile.

        It writes a mark into the source. The mark comes after all that was written before, here and in the target.
        Raises DataError, also where `run` does meanwhile.
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
        """Have no follower write to the target any more, until it is opened. Raises DataError.

        ConditionNotMet says that another follower has taken its place.
        """
        await self._write([Put(self._to + _WRITER, _CLOSED), Delete(self._to + self._mark)])

    async def verify(self) -> Comparison:
        """Read both sides whole, and compare: to be called while the source takes no writes. Raises DataError."""
        source, target = await asyncio.gather(self._source.read(), self._target.read())
        return Comparison(source.tally, target.tally)

    async def forget(self) -> None:
        """Delete the marks of followers on both sides. Who may write there stays noted. Raises DataError."""
        for place, head in ((self._source, self._from), (self._target, self._to)):
            await place.apply([DeleteRange(head + _MARKS, head + prefixes.range_end(_MARKS))])

    async def _take(self) -> None:
        """Have the target compare the name of this follower from now on, unless it is closed."""
        key = self._to + _WRITER
        found = await self._target.client.get(key)
        if found is not None and found.value == _CLOSED:
            raise ConditionNotMet(f"{self._target.prefix} is closed to followers: it is in use")
        before: Condition = Equals(key, found.value) if found is not None else Absent(key)
        taken = await self._target.client.apply([Put(key, self._name)], only_if=(*self._target.only_if, before))
        self._held = (*self._target.only_if, Equals(key, self._name))
        self._held_shortly = (Unchanged(key, taken.revision),)

    async def _differing(
        self, items: Iterable[KeyValue], wrong: set[bytes], *, old: Mapping[bytes, int]
    ) -> AsyncIterator[Operation]:
        """Give what to write of a page, and take its keys from those that are wrong in the target."""
        for item in items:
            key = item.key.removeprefix(self._from)
            if _is_left_out(key):
                continue
            # A lease is not in the hash. So what has one is written again.
            fell = old.get(key, item.revision) < item.revision
            if not item.lease and not fell and self._written.has(key, item.value):
                wrong.discard(key)
                self._copied.put(key, item.value)
            elif (put := await self._put(key, item.value, lease=item.lease)) is not None:
                wrong.discard(key)
                self._copied.put(key, item.value)
                yield put

    async def _put(self, key: bytes, value: bytes, *, lease: int) -> Put | None:
        """Return how the target gets a key; None if its lease has ended."""
        if lease and lease not in self._leases:
            left = await self._source.client.lease_seconds(lease)
            if left <= 0:
                return None
            self._leases[lease] = await self._target.client.grant_lease(left + _SPARE_SECONDS)
        return Put(self._to + key, value, lease=self._leases[lease] if lease else 0)

    async def _watch_source(self, waiting: Backlog) -> None:
        watched = changes(self._source.client, self._source.prefix, after=self.revision)
        async with contextlib.aclosing(watched) as groups:
            async for each in groups:
                if self._behind_since is None:
                    self._behind_since = time.monotonic()
                await waiting.put(each)

    async def _watch_target(self) -> None:
        watched = changes(self._target.client, self._target.prefix, after=self._shown)
        async with contextlib.aclosing(watched) as groups:
            async for each in groups:
                self._see(each)

    def _see(self, group: Changes) -> None:
        marked = 0
        for change in group.items:
            key = change.key.removeprefix(self._to)
            _note(self._written, key, change.value)
            if key == self._mark and change.value is not None:
                marked = int(change.value)
        self._shown = group.revision
        arrived = [each for number, each in self._awaited.items() if number <= marked and not each.done()]
        if arrived:
            found = Comparison(self._copied, self._written)
            for each in arrived:
                each.set_result(found)

    async def _follow(self, waiting: Backlog) -> NoReturn:
        while True:
            groups = await waiting.take()
            # Of a key that changed several times, what it is at last. A transaction may have it once.
            latest: dict[bytes, Change] = {}
            for change in (change for group in groups for change in group.items):
                key = change.key.removeprefix(self._from)
                # In the order of the last changes, so that a mark stays behind what was before it.
                former = latest.pop(key, None)
                latest[key] = _later_mark(former, change) if key == self._mark else change
                _note(self._copied, key, change.value)
            operations = [each for key, change in latest.items() if (each := await self._operation(key, change))]
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
        self.size += sum(len(each.key) + len(each.value) for each in batch if isinstance(each, Put))


def _later_mark(former: Change | None, change: Change) -> Change:
    """Return the one of the higher number: calls beside each other may come in another order."""
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
