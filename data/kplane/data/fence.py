"""Fence for the etcd of a single tenant, which runs without access control: its API server may read and not write.

Users and roles are created while access control is off and they have no effect. A single request then turns access
control on, and another turns it off, so a fence is never partial. The user `root` may do everything meanwhile.
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
    """Create the users and roles of a fence, behind which `user` can only read. Idempotent. Raises DataError."""
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
    """Deny a user all writes once this function has returned. Reads stay allowed.

    `user` is the CN of a client certificate. The user of `client` must be `root`. Writes of the user in flight may
    fail. Idempotent. Raises DataError.
    """
    await prepare_fence(client, user=user)
    await client.access.enable()


async def seal(client: Client, *, user: str) -> None:
    """Deny a fenced user reads too, once this function has returned; `fence` allows reads again. Raises DataError."""
    for role in await client.access.roles_of(user) or ():
        await client.access.revoke_role(user, role)


async def lift_fence(client: Client) -> None:
    """Allow everything again for every client certificate. `client` must be `root`. Idempotent. Raises DataError."""
    await client.access.disable()


async def is_fenced(client: Client) -> bool:
    """Return whether the etcd is fenced. The user of `client` must be `root`. Raises DataError."""
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
