"""Owners of prefixes: an owner key for each, compared by etcd in each transaction that writes or deletes for an owner.

The owner key of `/clusters/acme/` is `/kplane.dev/owners/clusters/acme/`. It lies outside of every prefix, so no tenant
reads or writes it.
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
"""Keys that one transaction deletes: few enough that other tenants do not wait."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a prefix, by a uid that is never used again."""

    uid: str
    name: str = ""
    """For people."""

    @property
    def label(self) -> str:
        """Name and uid, for people."""
        return f"{self.name} ({self.uid})" if self.name else self.uid

    def encode(self) -> bytes:
        """Return the value of the owner key: the uid, a space, the name."""
        return (f"{self.uid} {self.name}" if self.name else self.uid).encode()

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Read what `encode` wrote."""
        uid, _, name = value.decode(errors="replace").partition(" ")
        return cls(uid, name)


def owner_key(prefix: str) -> bytes:
    """Return the key that says who owns a prefix. Raises InvalidPrefix."""
    return _OWNERS + prefixes.checked(prefix)


def owned_by(prefix: str, owner: Owner) -> Equals:
    """Return the condition for `Client.apply` that lets it change something for this owner only."""
    return Equals(owner_key(prefix), owner.encode())


async def owner_of(client: Client, prefix: str) -> Owner | None:
    """Return who owns a prefix; None if it has no owner key. Raises DataError."""
    found = await client.get(owner_key(prefix))
    return Owner.decode(found.value) if found is not None else None


async def owned_below(client: Client, prefix: str) -> dict[str, Owner]:
    """Return the prefixes below a prefix that have an owner, and who that is. Raises DataError."""
    below = owner_key(prefix).decode()
    return {
        item.key.decode().removeprefix(_OWNERS.decode()): Owner.decode(item.value)
        async for page in client.pages(below)
        for item in page.items
    }


async def claim(client: Client, prefix: str, *, owner: Owner, known: bool = False) -> None:
    """Make a prefix the owner's; nothing is written if it is already.

    A prefix without owner key that has keys goes only to an owner that is `known` to have made them. Raises NotOwned,
    and DataError.
    """
    found = await owner_of(client, prefix)
    if found == owner:
        return
    if found is not None and found.uid != owner.uid:
        raise NotOwned(prefix, found)
    await _change(client, prefix, found=found, owner=owner, empty=found is None and not known)


async def take_over(client: Client, prefix: str, *, former: Owner | None, owner: Owner) -> None:
    """Make a prefix with its keys the owner's, if `former` has it still; None stands for a prefix without owner key.

    Raises NotOwned, and DataError.
    """
    if former != owner:
        await _change(client, prefix, found=former, owner=owner, empty=False)


async def release(client: Client, prefix: str, *, owner: Owner) -> bool:
    """Delete owner key and identity if the prefix is the owner's and has no key; tell whether it did.

    Raises DataError.
    """
    try:
        both: list[Operation] = [Delete(owner_key(prefix)), Delete(identity_key(prefix))]
        await client.apply(both, only_if=[owned_by(prefix, owner), Empty(prefix)])
    except ConditionNotMet:
        return False
    return True


async def delete_owned(client: Client, prefix: str, *, owner: Owner) -> int:
    """Delete the keys of a prefix, first their identity, and with the last of them the owner key; returns their number.

    Each transaction compares the owner key: from the moment at which another owner has the prefix, nothing is deleted.
    Raises NotOwned, and DataError.
    """
    start, guard, deleted = prefixes.checked(prefix), [owned_by(prefix, owner)], 0
    try:
        await client.apply([Delete(identity_key(prefix))], only_if=guard)
        while (last := await client.last_of_first(prefix, count=_CHUNK)) is not None:
            deleted += (await client.apply([DeleteRange(start, last + b"\0")], only_if=guard)).deleted
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
        # An earlier call that got no answer may have done it.
        if (now := await owner_of(client, prefix)) != owner:
            raise NotOwned(prefix, now) from None
