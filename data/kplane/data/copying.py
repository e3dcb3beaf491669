"""Copies below a prefix that are whole, or are begun again: a key beside the data says how far one is."""

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
    """Have the keys of a prefix be those of the groups, for its owner; False if it has other keys, which stay.

    The prefix is the owner's; nothing else may write there before this has returned. A copy that was cut off has a
    mark, and is begun again. A finished one has a mark with the owner's uid, and is left as it is. A `check` that
    raises, or a group, keeps the copy unfinished. Raises NotOwned, NoRoom, and DataError.
    """
    head = prefixes.checked(prefix)
    room, begun = RoomWatch(client), None
    mark, unfinished = head + COPY_MARK, _unfinished(owner) + uuid.uuid4().hex.encode()
    guard: list[Condition] = [owned_by(prefix, owner)]
    try:
        async with contextlib.aclosing(_batched(head, groups)) as cut:
            first = await anext(cut)
            # A large value has no room for the mark beside it.
            last = first if is_large(first) else []
            begun = await _begin(client, prefix, [] if last else first, owner=owner, unfinished=unfinished)
            if begun is None:
                return await is_copy(client, prefix, owner=owner)
            guard.append(Equals(mark, unfinished))
            # An API server may have filled its whole request with the value. This condition is shorter than that of the
            # API server. It fails once another copy begins, or an owner deletes the prefix.
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
            # Others need the room. Not the mark: a full etcd takes deletions only, and the next call begins again.
            await client.apply(_all_but(head, mark), only_if=guard)
        raise
    return True


async def lacks_data(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Tell whether a prefix has no keys, or only those of a copy for this owner that was cut off. Raises DataError.

    A mark of another owner says nothing: an API server may have run on the keys since, such as before they were kept.
    """
    found = await client.get(prefixes.checked(prefix) + COPY_MARK)
    if found is not None:
        return found.value.startswith(_unfinished(owner))
    return await client.count(prefix) == 0


async def discard_unfinished(client: Client, prefix: str, *, owner: Owner) -> None:
    """Delete the keys of a copy for this owner that was cut off, before anything else uses the prefix.

    Raises NotOwned, and DataError.
    """
    head = prefixes.checked(prefix)
    found = await client.get(head + COPY_MARK)
    if found is None or not found.value.startswith(_unfinished(owner)):
        return
    everything = DeleteRange(head, prefixes.range_end(head))
    try:
        await client.apply([everything], only_if=[owned_by(prefix, owner), Equals(head + COPY_MARK, found.value)])
    except ConditionNotMet:
        await _check_owner(client, prefix, owner=owner)
        raise


async def is_copy(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Tell whether the keys of a prefix are a finished copy that was made for this owner. Raises DataError."""
    found = await client.get(prefixes.checked(prefix) + COPY_MARK)
    return found is not None and found.value == _FINISHED + owner.uid.encode()


async def _begin(client: Client, prefix: str, first: list[Operation], *, owner: Owner, unfinished: bytes) -> int | None:
    """Write the mark and the first keys, and return the revision of the mark.

    None: the prefix has keys that are not of an unfinished copy.
    """
    head, owned = prefixes.checked(prefix), owned_by(prefix, owner)
    mark = head + COPY_MARK
    try:
        return (await client.apply([Put(mark, unfinished), *first], only_if=[owned, Empty(prefix)])).revision
    except ConditionNotMet:
        found = await client.get(mark)
        if found is None or not found.value.startswith(_unfinished(owner)):
            await _check_owner(client, prefix, owner=owner)
            return None
        # From here on, a late call of the attempt that was cut off changes nothing more.
        again = [*_all_but(head, mark), Put(mark, unfinished)]
        revision = (await client.apply(again, only_if=[owned, Equals(mark, found.value)])).revision
        await client.apply(first, only_if=[owned, Equals(mark, unfinished)])
        return revision


def _all_but(head: bytes, mark: bytes) -> list[Operation]:
    return [DeleteRange(head, mark), DeleteRange(mark + b"\0", prefixes.range_end(head))]


async def _batched(head: bytes, groups: AsyncIterable[Iterable[Pair]]) -> AsyncGenerator[list[Operation], None]:
    """Cut the pairs into transactions; at least one, which may be empty."""
    rest: list[Operation] = []
    async for group in groups:
        puts = (Put(head + key, value) for key, value in group)
        # Two operations are for the mark.
        *full, rest = [*batches([*rest, *puts], most=MAX_OPERATIONS - 2)] or [[]]
        for batch in full:
            yield batch
    yield rest


async def _check_owner(client: Client, prefix: str, *, owner: Owner) -> None:
    if (found := await owner_of(client, prefix)) != owner:
        raise NotOwned(prefix, found)


def _unfinished(owner: Owner) -> bytes:
    return _UNFINISHED + owner.uid.encode() + b" "
