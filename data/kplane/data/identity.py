"""Which data a prefix has: a random identity beside the owner key, outside of every prefix.

Data that are deleted with their etcd, or replaced by an older backup, lose it. So an empty prefix that had data before
differs from a new one. A copy has an identity of its own. Data that move keep theirs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from kplane.data import prefix as prefixes
from kplane.data.client import Absent, Client, Condition, Put
from kplane.data.errors import ConditionNotMet, DataLost

__all__ = ["identify", "identity_key", "identity_of", "set_identity"]

_IDENTITIES: Final = b"/kplane.dev/identities"
_LASTING: Final = b"namespaces/kube-system"
"""A key that each API server has from its first minute on, and that it lets no client delete."""


def identity_key(prefix: str) -> bytes:
    """Return the key that has the identity of the data of a prefix. Raises InvalidPrefix."""
    return _IDENTITIES + prefixes.checked(prefix)


async def identity_of(client: Client, prefix: str) -> str | None:
    """Return the identity of the data of a prefix; None if they have none. Raises DataError."""
    found = await client.get(identity_key(prefix))
    return found.value.decode(errors="replace") if found is not None else None


async def identify(
    client: Client, prefix: str, *, expected: str | None, used: bool, only_if: Sequence[Condition] = ()
) -> str:
    """Return the identity of the data of a prefix, and write one if they have none and none is expected.

    `used` says that an API server has served the data before. The write compares `only_if`. Raises DataLost if the
    identity is not the expected one, or used data lack what each API server writes; and DataError.
    """
    found = await identity_of(client, prefix)
    if expected is not None and found != expected:
        raise DataLost(prefix, expected=expected, found=found)
    if used and await client.get(prefixes.checked(prefix) + _LASTING) is None:
        raise DataLost(prefix, expected=expected, found=found)
    if found is not None:
        return found
    made = uuid.uuid4().hex
    try:
        await client.apply([Put(identity_key(prefix), made.encode())], only_if=[*only_if, Absent(identity_key(prefix))])
    except ConditionNotMet:
        # An earlier call that got no answer may have done it.
        if (now := await identity_of(client, prefix)) is None:
            raise
        return now
    return made


async def set_identity(client: Client, prefix: str, identity: str, *, only_if: Sequence[Condition] = ()) -> None:
    """Give the data of a prefix this identity, because they moved there. Raises ConditionNotMet, and DataError."""
    if await identity_of(client, prefix) != identity:
        await client.apply([Put(identity_key(prefix), identity.encode())], only_if=only_if)
