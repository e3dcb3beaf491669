"""Clones: the keys of a template below another prefix, with a fresh uid for each object.

All uids have one length. So a uid is replaced byte by byte wherever it occurs, in protobuf and in JSON. That includes
the owner references of other objects.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Self

from kplane.data import prefix as prefixes
from kplane.data.client import MAX_OPERATIONS, Client, Condition, DeleteRange, Empty, Equals, Operation, Put
from kplane.data.errors import ConditionNotMet, NotOwned, ValueUnreadable
from kplane.data.owner import Owner, owned_by, owner_of
from kplane.data.template import COPY_MARK, Template, batches
from kplane.data.uids import uid_of

__all__ = ["Original", "clone", "discard_unfinished", "is_clone", "lacks_data"]

_UID_LENGTH: Final = 36
_OF_ONE_API_SERVER: Final = (b"configmaps/kube-system/extension-apiserver-authentication",)
"""What an API server writes about its own certificates. It adds to what it finds there, so a copy would trust them."""
_UNFINISHED: Final = b"unfinished "
_FINISHED: Final = b"finished "


@dataclass(frozen=True, slots=True)
class Original:
    """A template, read for copies: each value is cut at the uids in it, once for all copies."""

    uids: frozenset[bytes]
    _pieces: tuple[tuple[bytes, tuple[bytes, ...]], ...]
    """Of each key its value: the pieces at odd places are those that a copy replaces."""

    @classmethod
    def of(cls, template: Template, *, placeholder: str = "") -> Self:
        """Read a template. A copy has a string of its own in the place of `placeholder`, which is as long as a uid.

        Raises ValueUnreadable if the template has a value whose uid cannot be told.
        """
        values = {key: value for key, value in template.values.items() if key not in _OF_ONE_API_SERVER}
        uids = frozenset(uid.encode() for uid in map(uid_of, values.values()) if uid is not None)
        replaced = uids | ({placeholder.encode()} if placeholder else set())
        if strange := [uid for uid in replaced if len(uid) != _UID_LENGTH]:
            raise ValueUnreadable(f"{strange[0]!r} does not have the length of a uid")
        if not replaced:
            return cls(uids, tuple((key, (value,)) for key, value in values.items()))
        cut = re.compile(b"(" + b"|".join(map(re.escape, sorted(replaced))) + b")")
        return cls(uids, tuple((key, tuple(cut.split(value))) for key, value in values.items()))

    def copied(self, *, replaced: str = "", without: Collection[bytes] = ()) -> Iterator[tuple[bytes, bytes]]:
        """Make a copy: keys without prefix and values, each uid fresh, and `replaced` in the place of the placeholder.

        The keys `without` are left out. Raises ValueError unless `replaced` is as long as a uid.
        """
        fresh = {uid: str(uuid.uuid4()).encode() for uid in self.uids}
        for key, pieces in self._pieces:
            if key in without:
                continue
            if len(pieces) == 1:
                yield key, pieces[0]
                continue
            copy = list(pieces)
            for place in range(1, len(pieces), 2):
                copy[place] = fresh.get(pieces[place]) or _checked(replaced)
            yield key, b"".join(copy)


async def clone(
    client: Client,
    original: Original,
    prefix: str,
    *,
    owner: Owner,
    replaced: str = "",
    without: Collection[bytes] = (),
) -> bool:
    """Have the keys of a prefix be a copy made for its owner; False if the prefix has other keys, which stay.

    The prefix is the owner's; nothing else may write there before this has returned. A copy that was cut off has a
    mark, and is begun again. A finished one has a mark with the owner's uid, and is left as it is. `replaced` and
    `without` are those of `Original.copied`. Raises NotOwned, and DataError.
    """
    head = prefixes.checked(prefix)
    mark, unfinished = head + COPY_MARK, _unfinished(owner) + uuid.uuid4().hex.encode()
    guard: list[Condition] = [owned_by(prefix, owner)]
    # Two operations are for the mark.
    puts = (Put(head + key, value) for key, value in original.copied(replaced=replaced, without=without))
    first, *others = [*batches(puts, most=MAX_OPERATIONS - 2)] or [[]]
    last = others.pop() if others else []
    try:
        try:
            await client.apply([Put(mark, unfinished), *first], only_if=[*guard, Empty(prefix)])
        except ConditionNotMet:
            found = await client.get(mark)
            if found is None or not found.value.startswith(_unfinished(owner)):
                await _check_owner(client, prefix, owner=owner)
                return found is not None and found.value == _finished(owner)
            # From here on, a late call of the attempt that was cut off changes nothing more.
            again: list[Operation] = [
                DeleteRange(head, mark),
                DeleteRange(mark + b"\0", prefixes.range_end(head)),
                Put(mark, unfinished),
            ]
            await client.apply(again, only_if=[*guard, Equals(mark, found.value)])
            await client.apply(first, only_if=[*guard, Equals(mark, unfinished)])
        guard.append(Equals(mark, unfinished))
        for batch in others:
            await client.apply(batch, only_if=guard)
        await client.apply([*last, Put(mark, _finished(owner))], only_if=guard)
    except ConditionNotMet:
        await _check_owner(client, prefix, owner=owner)
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


async def is_clone(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Tell whether the keys of a prefix are a finished copy that was made for this owner. Raises DataError."""
    found = await client.get(prefixes.checked(prefix) + COPY_MARK)
    return found is not None and found.value == _finished(owner)


async def _check_owner(client: Client, prefix: str, *, owner: Owner) -> None:
    if (found := await owner_of(client, prefix)) != owner:
        raise NotOwned(prefix, found)


def _unfinished(owner: Owner) -> bytes:
    return _UNFINISHED + owner.uid.encode() + b" "


def _finished(owner: Owner) -> bytes:
    return _FINISHED + owner.uid.encode()


def _checked(replaced: str) -> bytes:
    if len(replaced) != _UID_LENGTH:
        raise ValueError(f"{replaced!r} does not have the length of a uid")
    return replaced.encode()
