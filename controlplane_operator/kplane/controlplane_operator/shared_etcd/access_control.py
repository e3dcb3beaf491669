"""Keeps the access control of the shared etcd on, and each control plane's user below its prefix."""

from __future__ import annotations

import asyncio
import logging
from typing import Final, NoReturn
from weakref import WeakValueDictionary

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.watch.backoff import jittered

__all__ = ["AccessControl"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 15.0
"""How long access control may be off, and a user may have other rights, before the operator repairs it."""
_FULL_EVERY: Final = 20
"""Every so many periods all users are looked at, whatever etcd says about changes: a restored etcd tells old ones."""


class AccessControl:
    """Grants prefixes to users, remembers which, and repairs what somebody else changes of that.

    Grants and revocations raise KeyspaceError.
    """

    def __init__(self, etcd: SharedEtcd) -> None:
        """Manage the users of this etcd."""
        self._etcd = etcd
        self._granted: dict[str, str] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._seen: int | None = None
        self._checks = 0
        self.problem: str | None = None
        """Why the last check failed, for /readyz."""

    async def grant(self, user: str, *, prefix: str) -> None:
        """Let a user read and write below a prefix and nothing else; nothing is asked if that was granted before."""
        if self._granted.get(user) == prefix:
            return
        await self._etcd.keyspace.ensure_authentication()
        async with self._lock(user):
            await self._etcd.keyspace.grant(user, prefix=prefix)
            self._granted[user] = prefix

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
            prefix = self._granted.get(user)
            if prefix is not None and await self._etcd.keyspace.grant(user, prefix=prefix):
                _log.warning("user %s of the shared etcd had other rights than %s; repaired them", user, prefix)

    def _lock(self, user: str) -> asyncio.Lock:
        lock = self._locks.get(user)
        if lock is None:
            lock = self._locks[user] = asyncio.Lock()
        return lock
