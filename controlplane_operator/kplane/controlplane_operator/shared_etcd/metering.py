"""Measures the storage of each tenant in the shared etcd in the background, and looks for the identity of its data."""

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
"""Growth of the database after which all tenants are measured at once, because one of them may be filling it."""
_SHARE: Final = 0.1
"""Share of the time that calls of the meter may take, for any amount of data."""
_FAILURES: Final = 3
"""Number of consecutive failures after which measurements stop until the next look."""


@dataclass(frozen=True, slots=True)
class _Measured:
    usage: Usage | None
    """Last measurement; None if no measurement has succeeded."""
    at: float


class StorageMeter:
    """Measures each tenant every ten minutes, and keeps the last result.

    A tenant that has reached its quota is measured every 30 seconds, because a gateway refuses its writes until it
    frees space.
    """

    def __init__(
        self,
        etcd: SharedEtcd,
        *,
        tenants: Callable[[], Mapping[str, str]],
        is_full: Callable[[str], bool],
        measured: Callable[[str], None],
        identified: Callable[[str, str | None], None],
    ) -> None:
        """Create the meter; `tenants` returns the prefix of each tenant by uid.

        `is_full` returns whether the tenant with a uid has reached its quota. `measured` is called with a uid after a
        measurement. `identified` is called with each uid every 30 seconds, and with the identity of its data; None if
        they have none.
        """
        self._etcd = etcd
        self._tenants = tenants
        self._is_full = is_full
        self._told = measured
        self._identified = identified
        self._known: dict[str, _Measured] = {}
        self._size: int | None = None
        self._problem: str | None = None

    def usage(self, uid: str) -> Usage | None:
        """Return the last measurement of a tenant; None if there is none."""
        measurement = self._known.get(uid)
        return measurement.usage if measurement is not None else None

    def know(self, uid: str, usage: Usage) -> None:
        """Record the size of the keys that were just written for a new tenant, as if they had been measured."""
        self._known[uid] = _Measured(usage, time.monotonic())

    async def run(self) -> NoReturn:
        """Measure until cancelled. The log reports failures."""
        while True:
            try:
                await self.look()
            except KeyspaceError as error:
                self._fails(str(error))
            await asyncio.sleep(jittered(_LOOK_SECONDS))

    async def look(self) -> None:
        """Measure the tenants that are due. Raises KeyspaceError if the etcd does not answer."""
        tenants = self._tenants()
        self._known = {uid: measurement for uid, measurement in self._known.items() if uid in tenants}
        if not tenants:
            return
        # A single read for all tenants. No API server notices the loss of its data while it sleeps.
        identities = await self._etcd.keyspace.identities()
        for uid, prefix in tenants.items():
            self._identified(uid, identities.get(prefix))
        due = self._due(tenants, all_of_them=await self._has_grown())
        failed = 0
        for uid in due:
            measurement = self.usage(uid)
            try:
                measurement = await self._etcd.keyspace.usage(tenants[uid], share=_SHARE)
            except KeyspaceError as error:
                failed += 1
                self._fails(str(error))
                if failed == _FAILURES:
                    return
            else:
                failed = 0
                self._problem = None
            self._known[uid] = _Measured(measurement, time.monotonic())
            self._told(uid)

    def _due(self, tenants: Mapping[str, str], *, all_of_them: bool) -> list[str]:
        """Return the uids of tenants that are due, by size: a large tenant then delays no smaller one."""
        now, measurements = time.monotonic(), self._known
        due = [
            uid
            for uid in tenants
            if all_of_them
            or uid not in measurements
            or now - measurements[uid].at >= _PERIOD_SECONDS
            or self._is_full(uid)
        ]

        def size(uid: str) -> int:
            usage = self.usage(uid)
            return usage.bytes if usage is not None else 0

        return sorted(due, key=size)

    async def _has_grown(self) -> bool:
        """Return whether the database has grown by 64 MiB since the last growth. Compaction lowers the base."""
        size = await self._etcd.keyspace.size_in_use()
        grown = self._size is not None and size >= self._size + _GROWTH_BYTES
        self._size = size if self._size is None or grown else min(size, self._size)
        return grown

    def _fails(self, problem: str) -> None:
        if problem != self._problem:
            _log.warning("failed to measure a tenant in the shared etcd: %s", problem)
        self._problem = problem
