"""Identity of the data below a prefix: a random string in a key beside the owner key, outside of every prefix.

The identity is lost if its etcd is deleted or restored from an older backup. An empty prefix that had data before
therefore differs from a new prefix. A copy has an identity of its own. Moved data keep their identity.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kplane.data import prefix as prefixes
from kplane.data.client import Absent, Client, Condition, Put, Unchanged
from kplane.data.errors import ConditionNotMet, DataLost, ValueUnreadable
from kplane.data.uids import uid_of

__all__ = [
    "ServedData",
    "check_served",
    "identify",
    "identities_below",
    "identity_key",
    "identity_of",
    "set_identity",
]

_IDENTITIES: Final = b"/kplane.dev/identities"
_LASTING: Final = b"namespaces/kube-system"
"""A key that each API server creates within a minute of its first start. API servers refuse to delete this Namespace.

An API server that runs while its data are deleted creates the Namespace again, with another uid.
"""


@dataclass(frozen=True, slots=True)
class ServedData:
    """Record of data that an API server has served. A field is None if the record lacks it."""

    identity: str | None
    cluster_uid: str | None
    """The uid of Namespace `kube-system`."""


def identity_key(prefix: str) -> bytes:
    """Return the key of the identity of a prefix. Raises InvalidPrefix."""
    return _IDENTITIES + prefixes.checked(prefix)


async def identity_of(client: Client, prefix: str) -> str | None:
    """Return the identity of the data of a prefix; None if the data have none. Raises DataError."""
    item = await client.get(identity_key(prefix))
    return item.value.decode(errors="replace") if item is not None else None


async def identities_below(client: Client, prefix: str) -> dict[str, str]:
    """Return the identities of the data of all prefixes below a prefix, by prefix. Raises DataError."""
    return {
        item.key.decode().removeprefix(_IDENTITIES.decode()): item.value.decode(errors="replace")
        async for page in client.pages(identity_key(prefix).decode())
        for item in page.items
    }


async def check_served(client: Client, prefix: str, *, served: ServedData) -> None:
    """Compare the data of a prefix with their record, and write nothing.

    Raises DataLost if the data differ from the record, and DataError.
    """
    await _compare(client, prefix, served=served, found=await identity_of(client, prefix))


async def identify(
    client: Client,
    prefix: str,
    *,
    served: ServedData | None,
    given_up: str | None = None,
    only_if: Sequence[Condition] = (),
) -> str:
    """Return the identity of the data of a prefix, and write a new identity if the data have none.

    `served` is the record of the data; None for new data, and for data whose loss a person accepted. `given_up` is the
    identity of the accepted loss. The data get another identity, because a later loss needs its own acceptance. The
    write compares `only_if`. Raises DataLost if the data differ from the record, and DataError.
    """
    key = identity_key(prefix)
    existing = await client.get(key)
    identity = existing.value.decode(errors="replace") if existing is not None else None
    if served is not None:
        await _compare(client, prefix, served=served, found=identity)
    if existing is not None and identity is not None and identity != given_up:
        return identity
    fresh = uuid.uuid4().hex
    unchanged = Unchanged(key, existing.revision) if existing is not None else Absent(key)
    try:
        await client.apply([Put(key, fresh.encode())], only_if=[*only_if, unchanged])
    except ConditionNotMet:
        # An earlier call may have succeeded although its answer was lost.
        if (current := await identity_of(client, prefix)) in (None, given_up):
            raise
        return str(current)
    return fresh


async def _compare(client: Client, prefix: str, *, served: ServedData, found: str | None) -> None:
    if served.identity is not None and found != served.identity:
        raise DataLost(prefix, expected=served.identity, found=found)
    namespace = await client.get(prefixes.checked(prefix) + _LASTING)
    if namespace is None:
        raise DataLost(prefix, expected=served.identity, found=found)
    if served.cluster_uid is None:
        return
    try:
        uid = uid_of(namespace.value)
    except ValueUnreadable:
        # A class may encrypt Namespaces. Only the API server can read the uid then.
        return
    if uid != served.cluster_uid:
        raise DataLost(prefix, expected=served.identity, found=found, cluster_uid=uid)


async def set_identity(client: Client, prefix: str, identity: str, *, only_if: Sequence[Condition] = ()) -> None:
    """Set the identity of data that moved to this prefix. Raises ConditionNotMet, and DataError."""
    if await identity_of(client, prefix) != identity:
        await client.apply([Put(identity_key(prefix), identity.encode())], only_if=only_if)
