"""Which data a prefix has: a random identity beside the owner key, outside of every prefix.

Data that are deleted with their etcd, or replaced by an older backup, lose it. So an empty prefix that had data before
differs from a new one. A copy has an identity of its own. Data that move keep theirs.
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

__all__ = ["ServedData", "identify", "identity_key", "identity_of", "set_identity"]

_IDENTITIES: Final = b"/kplane.dev/identities"
_LASTING: Final = b"namespaces/kube-system"
"""A key that each API server has from its first minute on, and that it lets no client delete.

An API server that runs while its data are deleted makes the namespace again, with another uid.
"""


@dataclass(frozen=True, slots=True)
class ServedData:
    """The record of data that an API server has served; None is what the record does not have."""

    identity: str | None
    cluster_uid: str | None
    """The uid of namespace `kube-system`."""


def identity_key(prefix: str) -> bytes:
    """Return the key that has the identity of the data of a prefix. Raises InvalidPrefix."""
    return _IDENTITIES + prefixes.checked(prefix)


async def identity_of(client: Client, prefix: str) -> str | None:
    """Return the identity of the data of a prefix; None if they have none. Raises DataError."""
    found = await client.get(identity_key(prefix))
    return found.value.decode(errors="replace") if found is not None else None


async def identify(
    client: Client,
    prefix: str,
    *,
    served: ServedData | None,
    given_up: str | None = None,
    only_if: Sequence[Condition] = (),
) -> str:
    """Return the identity of the data of a prefix, and write an identity if the data have none.

    `served` is the record of the data; None for new data, and for data whose loss a person accepted. `given_up` is the
    identity of the accepted loss. The data get another identity, because a later loss needs its own acceptance. The
    write compares `only_if`. Raises DataLost if the data are not those of the record, and DataError.
    """
    key = identity_key(prefix)
    existing = await client.get(key)
    found = existing.value.decode(errors="replace") if existing is not None else None
    if served is not None:
        await _compare(client, prefix, served=served, found=found)
    if existing is not None and found is not None and found != given_up:
        return found
    made = uuid.uuid4().hex
    unchanged = Unchanged(key, existing.revision) if existing is not None else Absent(key)
    try:
        await client.apply([Put(key, made.encode())], only_if=[*only_if, unchanged])
    except ConditionNotMet:
        # An earlier call that got no answer may have done it.
        if (now := await identity_of(client, prefix)) in (None, given_up):
            raise
        return str(now)
    return made


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
        # A class may encrypt namespaces: only the API server reads the uid then.
        return
    if uid != served.cluster_uid:
        raise DataLost(prefix, expected=served.identity, found=found, cluster_uid=uid)


async def set_identity(client: Client, prefix: str, identity: str, *, only_if: Sequence[Condition] = ()) -> None:
    """Give the data of a prefix this identity, because they moved there. Raises ConditionNotMet, and DataError."""
    if await identity_of(client, prefix) != identity:
        await client.apply([Put(identity_key(prefix), identity.encode())], only_if=only_if)
