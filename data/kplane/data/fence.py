"""Fence an etcd of one tenant, which has no access control otherwise: its API server reads on, and writes nothing.

The users and their roles are made while access control is off, when they count for nothing. Then one request turns it
on, and one turns it off: the fence is there as a whole or not at all. The user `root` may do everything meanwhile.
"""

from __future__ import annotations

import contextlib
from typing import Final

from kplane.data.access import Permission
from kplane.data.client import Client
from kplane.data.errors import AlreadyExists

__all__ = ["fence", "is_fenced", "lift_fence", "prepare_fence", "seal"]

_ROOT: Final = "root"
_READER: Final = "kplane-reader"
_READS: Final = Permission.everything(kind="read")


async def prepare_fence(client: Client, *, user: str) -> None:
    """Make the users and roles of a fence, behind which `user` only reads. It may be repeated. Raises DataError."""
    await _ensure_role(client, user=_ROOT, role=_ROOT)
    await _ensure_role(client, user=user, role=_READER)
    permissions = await client.access.permissions_of(_READER) or frozenset()
    if _READS not in permissions:
        await client.access.grant_permission(_READER, _READS)
    for other in permissions - {_READS}:
        if (other.key, other.range_end) != (_READS.key, _READS.range_end):
            await client.access.revoke_permission(_READER, other)
    for role in await client.access.roles_of(user) or ():
        if role != _READER:
            await client.access.revoke_role(user, role)


async def fence(client: Client, *, user: str) -> None:
    """Have a user, known by the CN of its client certificate, write nothing from the return on, and read on.

    `client` has to be the user `root`. It may be repeated. Writes of the user that are under way may fail. Raises
    DataError.
    """
    await prepare_fence(client, user=user)
    await client.access.enable()


async def seal(client: Client, *, user: str) -> None:
    """Have a fenced user not even read from the return on; `fence` lets it read again. Raises DataError."""
    for role in await client.access.roles_of(user) or ():
        await client.access.revoke_role(user, role)


async def lift_fence(client: Client) -> None:
    """Let everybody with a client certificate do everything again. It may be repeated, by `root`. Raises DataError."""
    await client.access.disable()


async def is_fenced(client: Client) -> bool:
    """Tell whether the fence is there, as `root`. Raises DataError."""
    return (await client.access.status()).enabled


async def _ensure_role(client: Client, *, user: str, role: str) -> None:
    roles = await client.access.roles_of(user)
    if roles is None:
        with contextlib.suppress(AlreadyExists):
            await client.access.add_user(user)
    if role not in (roles or ()):
        with contextlib.suppress(AlreadyExists):
            await client.access.add_role(role)
        await client.access.grant_role(user, role)
