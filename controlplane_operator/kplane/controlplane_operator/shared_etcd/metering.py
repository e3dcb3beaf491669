"""Measures what each tenant keeps in the shared etcd, in the background and slowly."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from kplane.controlplane_operator.errors import KeyspaceError
from kplane.controlplane_operator.shared_etcd.access import SharedEtcd
from kplane.controlplane_operator.watch.backoff import jittered
from kplane.data import Usage

__all__ = ["StorageMeter"]

_log: Final = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 30.0
_PERIOD_SECONDS: Final = 600.0
_GROWTH_BYTES: Final = 64 << 20
"""If the database grows by so much, all tenants are measured at once: one of them may be filling it."""
_SHARE: Final = 0.1
"""Of the time, for calls of the meter. The rest is for others, however much there is to measure."""
_FAILURES: Final = 3
"""So many in a row, and the etcd is left alone until the next look."""


@dataclass(frozen=True, slots=True)
class _Measured:
    usage: Usage | None
    """None where the first measurement failed."""
    at: float


class StorageMeter:
    """Measures each tenant every ten minutes, and remembers what it found. One that has reached its quota is measured
    every 30 seconds: a gateway refuses what it writes until it has made room.
    """

    def __init__(
        self,
        etcd: SharedEtcd,
        *,
        tenants: Callable[[], Mapping[str, str]],
        is_full: Callable[[str], bool],
        measured: Callable[[str], None],
    ) -> None:
        """`tenants` returns the prefix of each tenant, by its uid. The others are called with a uid."""
        self._etcd = etcd
        self._tenants = tenants
        self._is_full = is_full
        self._told = measured
        self._known: dict[str, _Measured] = {}
        self._size: int | None = None
        self._problem: str | None = None

    def usage(self, uid: str) -> Usage | None:
        """Return what was measured last; None if nothing was yet."""
        known = self._known.get(uid)
        return known.usage if known is not None else None

    def know(self, uid: str, usage: Usage) -> None:
        """Take for measured what was just written for a new tenant."""
        self._known[uid] = _Measured(usage, time.monotonic())

    async def run(self) -> NoReturn:
        """Measure until cancelled. The log says what fails."""
        while True:
            try:
                await self.look()
            except KeyspaceError as error:
                self._fails(str(error))
            await asyncio.sleep(jittered(_LOOK_SECONDS))

    async def look(self) -> None:
        """Measure the tenants whose turn it is. Raises KeyspaceError if the etcd does not answer."""
        tenants = self._tenants()
        self._known = {uid: known for uid, known in self._known.items() if uid in tenants}
        if not tenants:
            return
        due = self._due(tenants, all_of_them=await self._has_grown())
        failed = 0
        for uid in due:
            known = self.usage(uid)
            try:
                known = await self._etcd.keyspace.usage(tenants[uid], share=_SHARE)
            except KeyspaceError as error:
                failed += 1
                self._fails(str(error))
                if failed == _FAILURES:
                    return
            else:
                failed = 0
                self._problem = None
            self._known[uid] = _Measured(known, time.monotonic())
            self._told(uid)

    def _due(self, tenants: Mapping[str, str], *, all_of_them: bool) -> list[str]:
        """Return who is to be measured, the smallest first: a large tenant delays only itself."""
        now, known = time.monotonic(), self._known
        due = [
            uid
            for uid in tenants
            if all_of_them or uid not in known or now - known[uid].at >= _PERIOD_SECONDS or self._is_full(uid)
        ]

        def size(uid: str) -> int:
            usage = self.usage(uid)
            return usage.bytes if usage is not None else 0

        return sorted(due, key=size)

    async def _has_grown(self) -> bool:
        """Tell whether the database grew much since this was last true. Its size falls with each compaction."""
        size = await self._etcd.keyspace.size_in_use()
        grown = self._size is not None and size >= self._size + _GROWTH_BYTES
        self._size = size if self._size is None or grown else min(size, self._size)
        return grown

    def _fails(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("failed to measure a tenant in the shared etcd: %s", problem)
        self._problem = problem
