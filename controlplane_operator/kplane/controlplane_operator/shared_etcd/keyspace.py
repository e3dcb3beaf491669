"""The shared etcd: a key prefix and a user for each virtual control plane."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.data import AlreadyExists, Client, Credentials, DataError, NotFound, Permission

__all__ = ["Keyspace", "key_prefix"]

_PREFIX: Final = re.compile(r"/clusters/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/")
_ROOT: Final = "root"
_TIMEOUT_SECONDS: Final = 10.0


def key_prefix(cluster_path: str) -> str:
    """Return the prefix of a virtual control plane's keys; its slash at the end keeps `a` apart from `aa` and `a-b`.

    Raises KeyspaceError where the path cannot be one segment of a key.
    """
    return _checked(f"/clusters/{cluster_path}/")


def _checked(prefix: str) -> str:
    if not _PREFIX.fullmatch(prefix):
        raise KeyspaceError(f"{prefix!r} is not the prefix of a control plane; it must be /clusters/<clusterPath>/")
    return prefix


class Keyspace:
    """The shared etcd, as its administrator: the user `root` by client certificate, on one kept connection.

    Every method may be repeated, and goes on where an earlier call was cut off. Each raises KeyspaceError where etcd
    cannot be reached, does not answer in time or refuses.
    """

    def __init__(self, endpoint: str, *, credentials: Path, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        """Use the `ca.crt`, `client.crt` and `client.key` of a directory; renewed files are read again.

        `timeout_seconds` is the deadline of each call.
        """
        self.credentials = credentials
        self._client = Client(
            endpoint, credentials=Credentials.in_directory(credentials), timeout_seconds=timeout_seconds
        )

    @property
    def endpoint(self) -> str:
        """The URL of the etcd."""
        return self._client.endpoint

    def use(self, credentials: Path) -> None:
        """Use the files of another directory, from the next call on."""
        self.credentials = credentials
        self._client.connection.use(Credentials.in_directory(credentials))

    async def close(self) -> None:
        """Close the connection; a later call opens it again."""
        await self._client.close()

    async def ensure_authentication(self) -> bool:
        """Turn access control on: from then on every user has its own rights only. Tell whether it was off."""
        access = self._client.access
        with _told():
            if (await access.status()).enabled:
                return False
            await _unless(AlreadyExists, access.add_user(_ROOT))
            await _unless(AlreadyExists, access.add_role(_ROOT))
            await access.grant_role(_ROOT, _ROOT)
            await access.enable()
            return True

    async def access_revision(self) -> int:
        """Return a number that is another one after each change of users and roles."""
        with _told():
            return (await self._client.access.status()).revision

    async def problem(self) -> str | None:
        """Say why the etcd is not healthy; None if it has a leader, answers, and raised no alarm."""
        return await self._client.problem()

    async def version(self) -> str:
        """Return the version of the member that answers."""
        with _told():
            return await self._client.version()

    async def grant(self, user: str, *, prefix: str) -> bool:
        """Let a user, known by the CN of its client certificate, read and write below a prefix, and nothing else.

        What else it was allowed before is taken back, and what it may keep is not interrupted. Tell whether something
        had to be changed.
        """
        access, wanted = self._client.access, Permission.below(_checked(prefix))
        changed = False
        with _told():
            permissions = await access.permissions_of(user)
            if permissions != frozenset({wanted}):
                changed = True
                if permissions is None:
                    await _unless(AlreadyExists, access.add_role(user))
                await access.grant_permission(user, wanted)
                for other in permissions or ():
                    if (other.key, other.range_end) != (wanted.key, wanted.range_end):
                        await _unless(NotFound, access.revoke_permission(user, other))
            roles = await access.roles_of(user)
            if roles != (user,):
                changed = True
                if roles is None:
                    await _unless(AlreadyExists, access.add_user(user))
                for role in set(roles or ()) - {user}:
                    await _unless(NotFound, access.revoke_role(user, role))
                if user not in (roles or ()):
                    await access.grant_role(user, user)
        return changed

    async def revoke(self, user: str) -> None:
        """Take a user and its rights away."""
        with _told():
            await _unless(NotFound, self._client.access.delete_user(user))
            await _unless(NotFound, self._client.access.delete_role(user))

    async def count(self, prefix: str) -> int:
        """Return the number of keys below a prefix."""
        with _told():
            return await self._client.count(_checked(prefix))

    async def delete_prefix(self, prefix: str) -> int:
        """Delete every key below a prefix by one range delete, and see that none is left.

        Returns the number of deleted keys. Raises KeyspaceError where keys are there afterwards: somebody still writes.
        """
        with _told():
            deleted = await self._client.delete_prefix(_checked(prefix))
        left = await self.count(prefix)
        if left:
            raise KeyspaceError(f"{left} keys are left below {prefix} after its deletion: something still writes there")
        return deleted


async def _unless(expected: type[DataError], call: Awaitable[None]) -> None:
    """Make a call; this error says that there was nothing to do."""
    with suppress(expected):
        await call


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise KeyspaceError(str(error)) from error
