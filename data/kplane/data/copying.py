"""Copies below a prefix that are finished or begun again: a mark beside the data records the progress of a copy."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Final

from kplane.data import prefix as prefixes
from kplane.data.archive import Pair
from kplane.data.client import MAX_OPERATIONS, Client, Condition, DeleteRange, Empty, Equals, Operation, Put, Unchanged
from kplane.data.errors import ConditionNotMet, NoRoom, NotOwned
from kplane.data.owner import Owner, owned_by, owner_of
from kplane.data.room import RoomWatch
from kplane.data.template import COPY_MARK, batches, is_large

__all__ = ["discard_unfinished", "is_copy", "lacks_data", "write_copy"]

_UNFINISHED: Final = b"unfinished "
_FINISHED: Final = b"finished "


async def write_copy(
    client: Client,
    groups: AsyncIterable[Iterable[Pair]],
    prefix: str,
    *,
    owner: Owner,
    check: Callable[[], Awaitable[None]] | None = None,
) -> bool:
    """Copy the pairs of `groups` below a prefix, for its owner. Return False if the prefix has other keys, which stay.

    The prefix must belong to the owner, and must have no other writer until this function returns. An interrupted copy
    has the mark `unfinished`, and the function begins it again. A copy with the mark `finished` and the owner's uid
    stays unchanged. If `check` or a group raises, the copy stays unfinished. Raises NotOwned, NoRoom, and DataError.
    """
    head = prefixes.checked(prefix)
    room, begun = RoomWatch(client), None
    mark, unfinished = head + COPY_MARK, _unfinished(owner) + uuid.uuid4().hex.encode()
    guard: list[Condition] = [owned_by(prefix, owner)]
    try:
        async with contextlib.aclosing(_batched(head, groups)) as cut:
            first = await anext(cut)
            # A transaction with a large value has no space for the mark.
            last = first if is_large(first) else []
            begun = await _begin(client, prefix, [] if last else first, owner=owner, unfinished=unfinished)
            if begun is None:
                return await is_copy(client, prefix, owner=owner)
            guard.append(Equals(mark, unfinished))
            # A large value may fill a whole request of an API server. This condition is shorter than the condition that
            # an API server sends. It fails once another copy begins, or an owner deletes the prefix.
            short = [Unchanged(mark, begun)]
            async for batch in cut:
                if last:
                    await room.before(last)
                    await client.apply(last, only_if=short if is_large(last) else guard)
                last = batch
        if last and (check is not None or is_large(last)):
            await client.apply(last, only_if=short if is_large(last) else guard)
            last = []
        if check is not None:
            await check()
        await client.apply([*last, Put(mark, _FINISHED + owner.uid.encode())], only_if=guard)
    except ConditionNotMet:
        await _check_owner(client, prefix, owner=owner)
        raise
    except NoRoom:
        if begun is not None:
            # Other tenants need the space. The mark stays: a full etcd accepts deletions only, and the mark makes the
            # next call begin again.
            await client.apply(_all_but(head, mark), only_if=guard)
        raise
    return True


async def lacks_data(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Return whether a prefix is empty, or has only an interrupted copy for this owner. Raises DataError.

    The mark of another owner counts as data: an API server may since have run on the keys of that copy, such as before
    the data were retained.
    """
    mark = await client.get(prefixes.checked(prefix) + COPY_MARK)
    if mark is not None:
        return mark.value.startswith(_unfinished(owner))
    return await client.count(prefix) == 0


async def discard_unfinished(client: Client, prefix: str, *, owner: Owner) -> None:
    """Delete the keys of an interrupted copy for this owner, before the prefix gets another use.

    Raises NotOwned, and DataError.
    """
    head = prefixes.checked(prefix)
    mark = await client.get(head + COPY_MARK)
    if mark is None or not mark.value.startswith(_unfinished(owner)):
        return
    everything = DeleteRange(head, prefixes.range_end(head))
    try:
        await client.apply([everything], only_if=[owned_by(prefix, owner), Equals(head + COPY_MARK, mark.value)])
    except ConditionNotMet:
        await _check_owner(client, prefix, owner=owner)
        raise


async def is_copy(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Return whether the keys of a prefix are a finished copy for this owner. Raises DataError."""
    mark = await client.get(prefixes.checked(prefix) + COPY_MARK)
    return mark is not None and mark.value == _FINISHED + owner.uid.encode()


async def _begin(client: Client, prefix: str, first: list[Operation], *, owner: Owner, unfinished: bytes) -> int | None:
    """Write the mark and the first keys, and return the revision of the mark.

    Returns None if the prefix has keys that do not belong to an interrupted copy.
    """
    head, owned = prefixes.checked(prefix), owned_by(prefix, owner)
    mark = head + COPY_MARK
    try:
        return (await client.apply([Put(mark, unfinished), *first], only_if=[owned, Empty(prefix)])).revision
    except ConditionNotMet:
        existing = await client.get(mark)
        if existing is None or not existing.value.startswith(_unfinished(owner)):
            await _check_owner(client, prefix, owner=owner)
            return None
        # This transaction replaces the mark. A late call of the interrupted attempt compares the old mark, and fails.
        again = [*_all_but(head, mark), Put(mark, unfinished)]
        revision = (await client.apply(again, only_if=[owned, Equals(mark, existing.value)])).revision
        await client.apply(first, only_if=[owned, Equals(mark, unfinished)])
        return revision


def _all_but(head: bytes, mark: bytes) -> list[Operation]:
    return [DeleteRange(head, mark), DeleteRange(mark + b"\0", prefixes.range_end(head))]


async def _batched(head: bytes, groups: AsyncIterable[Iterable[Pair]]) -> AsyncGenerator[list[Operation], None]:
    """Cut the pairs into transactions: at least one transaction, which may be empty."""
    rest: list[Operation] = []
    async for group in groups:
        puts = (Put(head + key, value) for key, value in group)
        # Two operations of a transaction stay free for the mark.
        *full, rest = [*batches([*rest, *puts], most=MAX_OPERATIONS - 2)] or [[]]
        for batch in full:
            yield batch
    yield rest


async def _check_owner(client: Client, prefix: str, *, owner: Owner) -> None:
    if (existing := await owner_of(client, prefix)) != owner:
        raise NotOwned(prefix, existing)


def _unfinished(owner: Owner) -> bytes:
    return _UNFINISHED + owner.uid.encode() + b" "
