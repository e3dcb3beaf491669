"""Users, roles and permissions of etcd's access control."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final, Literal, Self

from kplane.data import prefix as prefixes
from kplane.data import rpc
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.connection import Connection
from kplane.data.errors import AlreadyExists, NotFound

__all__ = ["Access", "Permission", "Status"]

_ROOT: Final = "root"

Kind = Literal["read", "write", "readwrite"]

_TO_ETCD: Final[dict[Kind, pb.Permission.Type]] = {
    "read": pb.Permission.READ,
    "write": pb.Permission.WRITE,
    "readwrite": pb.Permission.READWRITE,
}
_FROM_ETCD: Final[dict[int, Kind]] = {number: kind for kind, number in _TO_ETCD.items()}


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission of a role: for one key, or for the keys from `key` (inclusive) to `range_end` (exclusive)."""

    kind: Kind
    key: bytes
    range_end: bytes = b""

    @classmethod
    def everything(cls, *, kind: Kind = "readwrite") -> Self:
        """Return a permission for all keys."""
        return cls(kind, b"\0", b"\0")

    @classmethod
    def below(cls, prefix: str, *, kind: Kind = "readwrite") -> Self:
        """Return a permission for all keys of a prefix. Raises InvalidPrefix."""
        key = prefixes.checked(prefix)
        return cls(kind, key, prefixes.range_end(key))


@dataclass(frozen=True, slots=True)
class Status:
    """State of access control."""

    enabled: bool
    revision: int
    """Auth revision of etcd; each change of users, roles or permissions raises it."""


class Access:
    """Calls about users and roles. Each method raises DataError."""

    def __init__(self, connection: Connection, *, timeout_seconds: float) -> None:
        """Use a connection. `timeout_seconds` is the deadline of each call."""
        self._connection = connection
        self._timeout_seconds = timeout_seconds

    async def status(self) -> Status:
        """Return whether access control is on, and its revision."""
        answer = await self._call(rpc.AUTH_STATUS, pb.AuthStatusRequest())
        return Status(answer.enabled, answer.authRevision)

    async def enable(self) -> None:
        """Turn access control on. The user `root` with the role `root` must exist."""
        await self._call(rpc.AUTH_ENABLE, pb.AuthEnableRequest())

    async def ensure_enabled(self) -> bool:
        """Turn access control on, with the user `root` that etcd requires. Return whether access control was off."""
        if (await self.status()).enabled:
            return False
        with contextlib.suppress(AlreadyExists):
            await self.add_user(_ROOT)
        with contextlib.suppress(AlreadyExists):
            await self.add_role(_ROOT)
        await self.grant_role(_ROOT, _ROOT)
        await self.enable()
        return True

    async def disable(self) -> None:
        """Turn access control off: each client certificate may do everything. Users and roles stay unchanged."""
        await self._call(rpc.AUTH_DISABLE, pb.AuthDisableRequest())

    async def add_user(self, name: str) -> None:
        """Add a user without a password: a client certificate with that CN identifies it. Raises AlreadyExists."""
        options = pb.UserAddOptions(no_password=True)
        await self._call(rpc.USER_ADD, pb.AuthUserAddRequest(name=name, options=options))

    async def delete_user(self, name: str) -> None:
        """Delete a user. Raises NotFound."""
        await self._call(rpc.USER_DELETE, pb.AuthUserDeleteRequest(name=name))

    async def roles_of(self, user: str) -> tuple[str, ...] | None:
        """Return the roles of a user; None if the user does not exist."""
        try:
            return tuple((await self._call(rpc.USER_GET, pb.AuthUserGetRequest(name=user))).roles)
        except NotFound:
            return None

    async def grant_role(self, user: str, role: str) -> None:
        """Give a user a role. Raises NotFound."""
        await self._call(rpc.USER_GRANT_ROLE, pb.AuthUserGrantRoleRequest(user=user, role=role))

    async def revoke_role(self, user: str, role: str) -> None:
        """Take a role from a user. Raises NotFound if the user does not exist or does not have the role."""
        await self._call(rpc.USER_REVOKE_ROLE, pb.AuthUserRevokeRoleRequest(name=user, role=role))

    async def add_role(self, name: str) -> None:
        """Add a role without permissions. Raises AlreadyExists."""
        await self._call(rpc.ROLE_ADD, pb.AuthRoleAddRequest(name=name))

    async def delete_role(self, name: str) -> None:
        """Delete a role; its users lose it. Raises NotFound."""
        await self._call(rpc.ROLE_DELETE, pb.AuthRoleDeleteRequest(role=name))

    async def permissions_of(self, role: str) -> frozenset[Permission] | None:
        """Return the permissions of a role; None if the role does not exist."""
        try:
            answer = await self._call(rpc.ROLE_GET, pb.AuthRoleGetRequest(role=role))
        except NotFound:
            return None
        return frozenset(
            Permission(_FROM_ETCD[granted.permType], granted.key, granted.range_end) for granted in answer.perm
        )

    async def grant_permission(self, role: str, permission: Permission) -> None:
        """Add a permission to a role; it replaces a permission for exactly the same range. Raises NotFound."""
        granted = pb.Permission(permType=_TO_ETCD[permission.kind], key=permission.key, range_end=permission.range_end)
        await self._call(rpc.ROLE_GRANT_PERMISSION, pb.AuthRoleGrantPermissionRequest(name=role, perm=granted))

    async def revoke_permission(self, role: str, permission: Permission) -> None:
        """Remove the permission for a range from a role, of any kind. Raises NotFound if the role has none there."""
        request = pb.AuthRoleRevokePermissionRequest(role=role, key=permission.key, range_end=permission.range_end)
        await self._call(rpc.ROLE_REVOKE_PERMISSION, request)

    async def _call(self, method: rpc.Method[rpc.RequestT, rpc.ResponseT], request: rpc.RequestT) -> rpc.ResponseT:
        return await self._connection.call(method, request, timeout_seconds=self._timeout_seconds)
