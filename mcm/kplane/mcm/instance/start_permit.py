"""Permission of an instance to run: its conditions in order, and the condition that is missing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import StrEnum
from typing import Final

from kplane.mcm.errors import McmError
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import Delayed, TenantLease
from kplane.mcm.instance.turns import Turn
from kplane.mcm.reasons import Reason
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.errors import ClusterNotOwned
from kplane.workloads import WorkloadsError

__all__ = ["Condition", "StartPermit"]

logger = logging.getLogger(__name__)


class Condition(StrEnum):
    """Condition of a start. A permit acquires the conditions in this order."""

    SHARD = "shard Lease"
    """This mcm owns the cluster. The client checks that again before each write of the Lease in the control plane."""
    LEASE = "Lease in the control plane"
    """mcm holds the Lease of the program. It comes before the turn, because an instance that has to wait for another
    program, or for its API server, must not hold up the start of other instances.
    """
    TURN = "turn"
    """Few instances start at once."""
    WATCHDOG = "watchdog"
    """The watchdog knows when the permit expires. It comes after the Lease, whose expiry it has to know before there is
    a process to kill.
    """
    ANNOUNCEMENT = "announcement"
    """The status of the registration names the instance, and the registration still wants it. `Instances` announces all
    instances of a cluster before any permit. The announcement is put off to this moment if another mcm reported an
    instance: it is written while the Lease is held, and before the process exists.
    """


class StartPermit:
    """Permission to start one instance and to keep it running.

    `renew` acquires the two Leases, which a running instance needs all the time. `acquired` acquires the other
    conditions, which only a start needs. Both return why a condition is missing, and `missing` names it.

    Two programs never have a permit for one control plane: the API server of the control plane orders the writes of the
    Lease, and the watchdog kills a process whose permit expires (`seconds_left`).
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        owned_seconds: Callable[[str], float | None] | None,
        lease: TenantLease | None,
        turn: Turn,
        watchdog: Callable[[], Awaitable[None]] | None,
        announcement: Callable[[], Awaitable[None]],
        timeout_seconds: float,
        grace_seconds: float,
    ) -> None:
        """Each callable belongs to the condition of its name.

        `owned_seconds` returns for how many seconds this mcm owns a cluster, by name; None: without limit. It raises
        ClusterNotOwned. `watchdog` and `announcement` raise WorkloadsError or McmError if the instance must not start.
        Without `owned_seconds`, `lease` or `watchdog`, the permit has no such condition. `timeout_seconds` is the
        deadline of a read, and `grace_seconds` the time without a renewal until an instance has to stop.
        """
        self._cluster = cluster.name
        self._owned_seconds = owned_seconds
        self._lease = lease
        self.turn: Final = turn
        self._last_conditions: Final = (
            (Condition.WATCHDOG, watchdog),
            (Condition.ANNOUNCEMENT, announcement),
        )
        self._timeout_seconds = timeout_seconds
        self._grace_seconds = grace_seconds
        self.missing: Condition | None = Condition.SHARD
        """First condition that is missing, or that is being acquired; None if the permit is complete, or is renewed."""
        self.blocking: BlockingReason | None = None
        """Why the last renewal failed; None if it succeeded."""
        self._renewed_at = 0.0
        """Start time of the last renewal that succeeded."""

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the first of the two Leases expires; None if no Lease limits the instance."""
        try:
            owned = self._owned_seconds(self._cluster) if self._owned_seconds is not None else None
        except ClusterNotOwned:
            owned = 0.0
        held = self._lease.seconds_left if self._lease is not None else None
        return min((seconds for seconds in (owned, held) if seconds is not None), default=None)

    @property
    def age(self) -> float:
        """Seconds since the start of the last renewal that succeeded."""
        return _now() - self._renewed_at

    @property
    def expired(self) -> bool:
        """Whether the instance has to stop. The Lease is still valid then: the rest of it is time for the end."""
        return self.age >= self._grace_seconds

    @property
    def refusal(self) -> str:
        """Why the API server refuses credentials that it accepted before; empty if it does not."""
        return self._lease.refusal if self._lease is not None else ""

    async def observe(self) -> bool:
        """Return whether the API server answers a read now."""
        return self._lease is None or await self._lease.observe()

    async def renew(
        self, config: ClusterConfig, *, seconds: float, delayed: Delayed | None = None
    ) -> BlockingReason | None:
        """Acquire or renew the Leases in at most `seconds`. `delayed` is as in `TenantLease.acquire`."""
        began = _now()
        self.missing = Condition.SHARD
        blocking = self._observe_shard()
        if blocking is None:
            self.missing = Condition.LEASE
            blocking = await self._acquire_lease(config, seconds, delayed)
        if blocking is None:
            self.missing, self._renewed_at = None, began
        self.blocking = blocking
        return blocking

    @contextlib.asynccontextmanager
    async def acquired(
        self, config: ClusterConfig, *, delayed: Delayed | None = None
    ) -> AsyncIterator[BlockingReason | None]:
        """Acquire the conditions after the Leases. Start the instance inside the block if it gets None.

        Return when the start is over, or when the turn is.
        """
        self.missing = Condition.TURN
        async with self.turn.acquired():
            yield await self._acquire_in_turn(config, delayed)

    async def release(self) -> None:
        """Release the Lease. Call this method after the end of the process."""
        if self._lease is not None:
            await self._lease.release()

    async def _acquire_in_turn(self, config: ClusterConfig, delayed: Delayed | None) -> BlockingReason | None:
        # Other instances wait for this turn. So the Lease is renewed again only if the last renewal is old. The renewal
        # is short, and as much time again is for finding the cause of a failure.
        if self.age >= self._grace_seconds / 2:
            blocking = await self.renew(config, seconds=self._timeout_seconds / 2, delayed=delayed)
            if blocking is not None:
                return blocking
        for condition, acquire in self._last_conditions:
            self.missing = condition
            try:
                if acquire is not None:
                    await acquire()
            except (McmError, WorkloadsError) as error:
                return BlockingReason(Reason.CANNOT_START, str(error))
        self.missing = None
        return None

    def _observe_shard(self) -> BlockingReason | None:
        try:
            if self._owned_seconds is not None:
                _ = self._owned_seconds(self._cluster)
        except ClusterNotOwned as error:
            return BlockingReason(Reason.CANNOT_START, f"another mcm works on it: {error}")
        return None

    async def _acquire_lease(
        self, config: ClusterConfig, seconds: float, delayed: Delayed | None
    ) -> BlockingReason | None:
        if self._lease is None:
            return None
        try:
            return await self._lease.acquire(config, seconds=seconds, delayed=delayed)
        except Exception as error:  # an answer of a hostile API server must not stop the gate of its instance
            logger.exception("cluster %s: failed to check its API server", self._cluster)
            return BlockingReason(
                Reason.CANNOT_START,
                f"mcm failed to check its API server ({type(error).__name__}); see the log of mcm",
            )


def _now() -> float:
    return asyncio.get_running_loop().time()
