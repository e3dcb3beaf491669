"""Keeps access control of the shared etcd enabled, and limits the user of each control plane to its prefix."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final, NoReturn
from weakref import WeakValueDictionary

from kplane.controlplane_operator.errors import KeyspaceError, PrefixNotOwned
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.data import NotOwned, Owner

__all__ = ["AccessControl"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 15.0
"""Interval in seconds of checks, and so the maximum time until the operator repairs access control and rights."""
_FULL_EVERY: Final = 20
"""Number of checks after which all users are read, even if etcd reports no change.

A restored etcd may report a revision of access control that the operator has already seen.
"""


@dataclass(frozen=True, slots=True)
class _Grant:
    prefix: str
    owner: Owner
    read_only: bool


class AccessControl:
    """Grants prefixes to users of their owners, and repairs grants that another client changes.

    Grants and revocations raise KeyspaceError.
    """

    def __init__(self, etcd: SharedEtcd) -> None:
        """Manage the users of this etcd."""
        self._etcd = etcd
        self._granted: dict[str, _Grant] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seen: int | None = None
        self._checks = 0
        self.problem: str | None = None
        """Failure of the last check, for /readyz; None if it succeeded."""

    def is_granted(self, user: str) -> bool:
        """Return whether the user has a grant, and no check has found another owner of its prefix."""
        return user in self._granted

    async def grant(self, user: str, *, prefix: str, owner: Owner, read_only: bool = False) -> None:
        """Let a user of the owner read and write below a prefix, and no other keys.

        With `read_only`, the user cannot write from the return on, and each call asks etcd. Otherwise, a repeated grant
        does not ask etcd again. Raises PrefixNotOwned unless the owner has claimed the prefix.
        """
        grant = _Grant(prefix, owner, read_only)
        if self._granted.get(user) == grant and not read_only:
            return
        await self._etcd.keyspace.ensure_authentication()
        async with self._lock(user):
            # Forget the grant first: an interrupted call may have changed rights, and the next call must ask etcd
            # again.
            self._granted.pop(user, None)
            await self._let_in(user, grant)
            self._granted[user] = grant

    async def revoke(self, user: str) -> None:
        """Delete a user and its rights."""
        # Forget the grant before the lock too. A check then skips the user, unless it already repairs this user.
        self._granted.pop(user, None)
        async with self._lock(user):
            self._granted.pop(user, None)
            await self._etcd.keyspace.revoke(user)

    def forget(self, user: str) -> None:
        """Stop repairs of this user until its next grant; its rights in etcd stay."""
        self._granted.pop(user, None)

    async def run(self) -> NoReturn:
        """Check periodically until cancelled. The log and `problem` report failures."""
        while True:
            try:
                await self.check()
            except KeyspaceError as error:
                problem = f"failed to check the access control of the shared etcd: {error}"
                if problem != self.problem:
                    _log.warning("%s", problem)
                self.problem = problem
            else:
                self.problem = None
            await asyncio.sleep(jittered(_PERIOD_SECONDS))

    async def check(self) -> None:
        """Enable access control if it is off, and repair the rights of all users if etcd reports a change."""
        if not self._granted:
            return
        keyspace = self._etcd.keyspace
        if await keyspace.ensure_authentication():
            _log.warning("the access control of the shared etcd was off; turned it on")
        self._checks += 1
        revision = await keyspace.access_revision()
        if revision == self._seen and self._checks % _FULL_EVERY:
            return
        for user in list(self._granted):
            await self._repair(user)
        # The next check covers later changes, which include the operator's own repairs.
        self._seen = revision

    async def _repair(self, user: str) -> None:
        async with self._lock(user):
            grant = self._granted.get(user)
            if grant is None:
                return
            try:
                if await self._let_in(user, grant):
                    _log.warning(
                        "user %s of the shared etcd had other rights than %s; repaired them", user, grant.prefix
                    )
            except PrefixNotOwned as error:
                # The etcd may have been restored. The next pass of the control plane claims the prefix, or reports its
                # owner.
                self._granted.pop(user, None)
                _log.warning("user %s of the shared etcd has no prefix any more: %s", user, error)

    async def _let_in(self, user: str, grant: _Grant) -> bool:
        """Grant a user its rights if its owner has the prefix; return whether any right was changed.

        The owner is compared before and after, because transactions of etcd cannot change rights. Raises
        PrefixNotOwned; the rights are then revoked if the prefix has another owner.
        """
        keyspace = self._etcd.keyspace
        owner = await keyspace.owner(grant.prefix)
        if owner == grant.owner:
            if not await keyspace.grant(user, prefix=grant.prefix, read_only=grant.read_only):
                return False
            owner = await keyspace.owner(grant.prefix)
            if owner == grant.owner:
                return True
            await keyspace.revoke(user)
        elif owner is not None:
            await keyspace.revoke(user)
        raise PrefixNotOwned(NotOwned(grant.prefix, owner))

    def _lock(self, user: str) -> asyncio.Lock:
        lock = self._locks.get(user)
        if lock is None:
            lock = self._locks[user] = asyncio.Lock()
        return lock
