"""Owners of prefixes. Each prefix has an owner key; etcd compares the key in each write or deletion for an owner.

The owner key of `/clusters/acme/` is `/kplane.dev/owners/clusters/acme/`. Owner keys lie outside of all prefixes, so no
tenant reads or writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from kplane.data import prefix as prefixes
from kplane.data.client import Absent, Client, Delete, DeleteRange, Empty, Equals, Operation, Put
from kplane.data.errors import ConditionNotMet, NotOwned
from kplane.data.identity import identity_key

__all__ = ["Owner", "claim", "delete_owned", "owned_below", "owned_by", "owner_key", "owner_of", "release", "take_over"]

_OWNERS: Final = b"/kplane.dev/owners"
_CHUNK: Final = 1000
"""Maximum number of deleted keys per transaction, so that a deletion does not delay other tenants."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Owner of a prefix, identified by a uid that is never used again."""

    uid: str
    name: str = ""
    """Name for people; also part of the owner key, and compared with it."""

    @property
    def label(self) -> str:
        """Name and uid, for messages."""
        return f"{self.name} ({self.uid})" if self.name else self.uid

    def encode(self) -> bytes:
        """Return the value of the owner key: the uid, a space, the name."""
        return (f"{self.uid} {self.name}" if self.name else self.uid).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read an owner from the value of an owner key, as `encode` returns it."""
        uid, _, name = value.decode(errors="replace").partition(" ")
        return cls(uid, name)


def owner_key(prefix: str) -> bytes:
    """Return the owner key of a prefix. Raises InvalidPrefix."""
    return _OWNERS + prefixes.checked(prefix)


def owned_by(prefix: str, owner: Owner) -> Equals:
    """Return the condition for `Client.apply` that the prefix belongs to this owner."""
    return Equals(owner_key(prefix), owner.encode())


async def owner_of(client: Client, prefix: str) -> Owner | None:
    """Return the owner of a prefix; None if the prefix has no owner key. Raises DataError."""
    item = await client.get(owner_key(prefix))
    return Owner.decode(item.value) if item is not None else None


async def owned_below(client: Client, prefix: str) -> dict[str, Owner]:
    """Return the owned prefixes below a prefix, each with its owner. Raises DataError."""
    below = owner_key(prefix).decode()
    return {
        item.key.decode().removeprefix(_OWNERS.decode()): Owner.decode(item.value)
        async for page in client.pages(below)
        for item in page.items
    }


async def claim(client: Client, prefix: str, *, owner: Owner, known: bool = False) -> None:
    """Make a prefix the owner's, without a write if the owner has the prefix already.

    Pass `known=True` if the owner is known to have made the keys of the prefix. Otherwise a prefix without owner key
    must be empty. Raises NotOwned, and DataError.
    """
    existing = await owner_of(client, prefix)
    if existing == owner:
        return
    if existing is not None and existing.uid != owner.uid:
        raise NotOwned(prefix, existing)
    await _change(client, prefix, found=existing, owner=owner, empty=existing is None and not known)


async def take_over(client: Client, prefix: str, *, former: Owner | None, owner: Owner) -> None:
    """Transfer a prefix with its keys from owner `former` to `owner`; None stands for a prefix without owner key.

    Raises NotOwned if `former` is no longer the owner, and DataError.
    """
    if former != owner:
        await _change(client, prefix, found=former, owner=owner, empty=False)


async def release(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Delete owner key and identity if the prefix is the owner's and empty. Return whether the keys were deleted.

    Raises DataError.
    """
    try:
        both: list[Operation] = [Delete(owner_key(prefix)), Delete(identity_key(prefix))]
        await client.apply(both, only_if=[owned_by(prefix, owner), Empty(prefix)])
    except ConditionNotMet:
        return False
    return True


async def delete_owned(client: Client, prefix: str, *, owner: Owner) -> int:
    """Delete all keys of a prefix, and return their number.

    The identity goes first, and the owner key with the last keys. Each transaction compares the owner key: once the
    prefix has another owner, this function deletes no more keys. Raises NotOwned, and DataError.
    """
    start, guard, deleted = prefixes.checked(prefix), [owned_by(prefix, owner)], 0
    try:
        await client.apply([Delete(identity_key(prefix))], only_if=guard)
        former: tuple[bytes, ...] = ()
        async for page in client.key_pages(prefix, size=_CHUNK):
            # From the first key of the page on: etcd keeps deleted keys in its index until a compaction, and each
            # range passes through them.
            if former:
                chunk = DeleteRange(former[0], former[-1] + b"\0")
                deleted += (await client.apply([chunk], only_if=guard)).deleted
            former = page
        rest: list[Operation] = [DeleteRange(start, prefixes.range_end(start)), Delete(owner_key(prefix))]
        return deleted + (await client.apply(rest, only_if=guard)).deleted - 1
    except ConditionNotMet:
        raise NotOwned(prefix, await owner_of(client, prefix)) from None


async def _change(client: Client, prefix: str, *, found: Owner | None, owner: Owner, empty: bool) -> None:
    key = owner_key(prefix)
    conditions = [Absent(key) if found is None else Equals(key, found.encode()), *([Empty(prefix)] if empty else ())]
    try:
        await client.apply([Put(key, owner.encode())], only_if=conditions)
    except ConditionNotMet:
        # An earlier call may have succeeded although its answer was lost.
        if (current := await owner_of(client, prefix)) != owner:
            raise NotOwned(prefix, current) from None
