"""Coordination by leader election: the leader works on all clusters, other processes are on standby."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NoReturn

from kplane.provider.aio.backoff import Backoff
from kplane.provider.aio.cancellation import complete
from kplane.provider.cluster.context import LOCAL, current_cluster
from kplane.provider.contracts import EngagementTarget
from kplane.provider.coordination.election import Election
from kplane.provider.errors import ClusterNotOwned, LeaseLost

__all__ = ["Leader"]

_log: Final = logging.getLogger(__name__)

_CANCEL_SECONDS: Final = 1.0
"""Time before the expiry of the Lease at which reconciles are cancelled; the process ends half a second later."""


class Leader:
    """Works on all clusters while it holds a Lease. Every replica can look clusters up, read them and serve webhooks.

    In a process that does not lead, reconciles do not begin, and running ones cannot write. Code outside of a
    reconcile, such as a webhook, may write.
    """

    def __init__(self, election: Election) -> None:
        self._election = election
        self._leading = False
        self._leaving = False

    @property
    def leading(self) -> bool:
        """Whether this process leads, also while its work ends, and never after the expiry of its Lease."""
        return self._leading and self._election.lease.held

    async def run(self, target: EngagementTarget) -> NoReturn:
        """Stand for election until cancelled."""
        backoff = Backoff(initial_seconds=1.0, maximum_seconds=30.0)
        while True:
            try:
                await self._election.run(lambda: self._lead(target, won=backoff.reset))
            except LeaseLost as error:
                delay = backoff.next_delay()
                _log.warning("lost the leadership: %s; standing for election in %.1f s", error, delay)
                await asyncio.sleep(delay)

    def may_work(self, cluster: str) -> bool:
        """Return whether this process leads."""
        del cluster
        return self.leading and not self._leaving

    def grace_seconds(self, cluster: str) -> float | None:
        """Return the remaining seconds of the Lease, less the time to cancel reconciles."""
        del cluster
        return max(0.0, self._election.lease.seconds_left - _CANCEL_SECONDS)

    def require_read(self, cluster: str) -> None:
        """Permit reads of every cluster in every process."""

    def require_write(self, cluster: str) -> float | None:
        """Raise ClusterNotOwned in a reconcile of a process that does not lead; return the remaining seconds."""
        if current_cluster() is not None and not self.leading:
            what = "the local cluster" if cluster == LOCAL else f"cluster {cluster!r}"
            raise ClusterNotOwned(f"{what} is not changed: this process does not lead ({self._election.lease})")
        return self._election.lease.seconds_left if current_cluster() is not None else None

    async def _lead(self, target: EngagementTarget, *, won: Callable[[], None]) -> None:
        won()
        self._leading, self._leaving = True, False
        begun: set[str] = set()
        going: set[asyncio.Task[None]] = set()
        try:
            while True:
                names = set(target.names())
                for name in begun - names:
                    # The fleet ends the work on the cluster, and the Lease must not be released before.
                    task = asyncio.create_task(target.withdraw(name), name=f"{name}: leaves the leader")
                    going.add(task)
                    task.add_done_callback(going.discard)
                begun = names
                for name in sorted(names):
                    target.allow(name)
                await target.wait_changed()
        finally:
            self._leaving = True
            try:
                await complete([*going, *(target.withdraw(name) for name in begun.union(target.names()))])
            finally:
                self._leading = False
