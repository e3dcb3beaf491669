"""Keeps the access control of the shared etcd on, and each control plane's user below its prefix."""

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
"""How long access control may be off, and a user may have other rights, before the operator repairs it."""
_FULL_EVERY: Final = 20
"""Every so many periods all users are looked at, whatever etcd says about changes: a restored etcd tells old ones."""


@dataclass(frozen=True, slots=True)
class _Grant:
    prefix: str
    owner: Owner
    read_only: bool


class AccessControl:
    """Grants prefixes to users of their owners, remembers which, and repairs what somebody else changes of that.

    Claims, grants and revocations raise KeyspaceError.
    """

    def __init__(self, etcd: SharedEtcd) -> None:
        """Manage the users of this etcd."""
        self._etcd = etcd
        self._granted: dict[str, _Grant] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seen: int | None = None
        self._checks = 0
        self.problem: str | None = None
        """Why the last check failed, for /readyz."""

    def is_granted(self, user: str) -> bool:
        """Tell whether a prefix was granted to the user, and was not found to be another owner's since."""
        return user in self._granted

    async def grant(self, user: str, *, prefix: str, owner: Owner, read_only: bool = False) -> None:
        """Let a user of the owner read and write below a prefix and nothing else.

        With `read_only` it writes nothing from the return on: etcd is asked each time. Otherwise nothing is asked if
        that was granted before. Raises PrefixNotOwned unless the prefix was claimed.
        """
        grant = _Grant(prefix, owner, read_only)
        if self._granted.get(user) == grant and not read_only:
            return
        await self._etcd.keyspace.ensure_authentication()
        async with self._lock(user):
            # A call that is cut off may have changed something: the next one asks again.
            self._granted.pop(user, None)
            await self._let_in(user, grant)
            self._granted[user] = grant

    async def revoke(self, user: str) -> None:
        """Take a user and its rights away."""
        # Before the lock: a check that is at this user comes to its end, and one that comes later leaves it out.
        self._granted.pop(user, None)
        async with self._lock(user):
            self._granted.pop(user, None)
            await self._etcd.keyspace.revoke(user)

    def forget(self, user: str) -> None:
        """Leave a user as it is, and repair nothing of it, until it is granted again."""
        self._granted.pop(user, None)

    async def run(self) -> NoReturn:
        """Check periodically until cancelled. The log and `problem` say what fails."""
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
        """Turn access control on if it is off, and repair the rights of all users if any were changed."""
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
        # Changes since, our own among them, are looked at by the next check.
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
                # As after a restore of the etcd. The control plane's next pass claims the prefix, or says whose it is.
                self._granted.pop(user, None)
                _log.warning("user %s of the shared etcd has no prefix any more: %s", user, error)

    async def _let_in(self, user: str, grant: _Grant) -> bool:
        """Give a user its rights, unless the prefix is not its owner's; tell whether any were changed.

        No transaction of etcd changes rights. So the owner is compared before and after.
        """
        keyspace = self._etcd.keyspace
        found = await keyspace.owner(grant.prefix)
        if found == grant.owner:
            if not await keyspace.grant(user, prefix=grant.prefix, read_only=grant.read_only):
                return False
            found = await keyspace.owner(grant.prefix)
            if found == grant.owner:
                return True
            await keyspace.revoke(user)
        elif found is not None:
            await keyspace.revoke(user)
        raise PrefixNotOwned(NotOwned(grant.prefix, found))

    def _lock(self, user: str) -> asyncio.Lock:
        lock = self._locks.get(user)
        if lock is None:
            lock = self._locks[user] = asyncio.Lock()
        return lock
