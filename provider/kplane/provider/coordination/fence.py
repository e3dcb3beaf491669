"""A Lease that guards work: the work begins after the acquisition, and ends before the release or expiry."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kplane.provider.coordination.lease import Lease
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import LeaseLost, ProviderError

__all__ = ["Counts", "Fence", "wait"]

log: Final = logging.getLogger(__name__)

_NEVER: Final = float("-inf")
_LEAST_SECONDS: Final = 0.001
"""Minimum pause: the difference of two clocks could otherwise keep the loop busy."""


@dataclass(slots=True)
class Counts:
    """Counts of events of the fences of this process."""

    acquired: int = 0
    released: int = 0
    lost: int = 0
    renewals: int = 0
    failures: int = 0


class Fence:
    """Runs the work behind a Lease, in the task of `run`, which `want(False)` ends.

    `begin` is called when work may begin; `end` must return when no work is left. All fences share `counts`, and
    `slots`, which bound the number of concurrent acquisitions and releases.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        timings: ShardTimings,
        counts: Counts,
        slots: asyncio.Semaphore,
        begin: Callable[[], None],
        end: Callable[[], Awaitable[None]],
        absent_since: Callable[[], float | None],
        now: Callable[[], float],
    ) -> None:
        self.lease: Final = lease
        self._timings = timings
        self._counts = counts
        self._slots = slots
        self._begin = begin
        self._end = end
        self._absent_since = absent_since
        self._now = now
        self._wanted = False
        self._changed = asyncio.Event()
        self._look = asyncio.Event()
        self._open = False
        self._working = False
        self._lost: str | None = None
        self._begins_until = self._ends_at = _NEVER

    @property
    def wanted(self) -> bool:
        """Whether this process should work behind the fence."""
        return self._wanted

    @property
    def working(self) -> bool:
        """Whether work has begun and not ended."""
        return self._working

    @property
    def may_begin(self) -> bool:
        """Whether new work may begin: false while the fence drains, and after a long time without renewal."""
        if self._open and (self._lost is not None or self._now() >= self._begins_until):
            # Work that is refused now is not repeated later, unless the fence closes and all work begins anew.
            self._close()
        return self._open

    @property
    def seconds_left(self) -> float:
        """Remaining seconds of running work; 0 or less if the work must end."""
        return self._ends_at - self._now() if self._working and self._lost is None else 0.0

    @property
    def overrun_at(self) -> float:
        """Time by which all work must have ended; infinity without work. Safe to read in another thread."""
        return self._ends_at if self._working else float("inf")

    def want(self, wanted: bool) -> None:
        """Start or stop the work of `run`."""
        if wanted != self._wanted:
            self._wanted = wanted
            self._changed.set()

    def look(self) -> None:
        """Renew the Lease now, because a foreign change was observed."""
        self._look.set()
        self._changed.set()

    async def run(self) -> None:
        """Acquire the Lease and run the work while it is wanted. Stop by `want(False)`, not by cancellation."""
        try:
            while await self._acquire():
                self._counts.acquired += 1
                await self._work()
                if self._lost is not None:
                    await self._pause(self._retry())
        finally:
            await self._release()

    async def _acquire(self) -> bool:
        logged: str | None = None
        while self._wanted:
            pause = self._retry()
            try:
                async with self._slots, asyncio.timeout(self._timings.call_seconds):
                    if await self.lease.try_acquire(absent_since=self._absent_since()):
                        return True
                problem = self.lease.obstacle
                pause = max(pause, min(self._timings.probe_seconds, self.lease.free_at - self._now()))
            except (ProviderError, TimeoutError) as error:
                self._counts.failures += 1
                problem = f"failed to acquire {self.lease}: {str(error) or 'no answer in time'}"
            if problem != logged:
                log.info("waiting: %s", problem)
                logged = problem
            await self._pause(pause)
        return False

    async def _work(self) -> None:
        self._lost = None
        self._renewed()
        self._open = self._working = True
        log.info("acquired %s: starting work", self.lease, extra={"identity": self.lease.identity})
        renewing = asyncio.create_task(self._keep_renewing(), name=f"renew {self.lease}")
        renewing.add_done_callback(lambda _: self._changed.set())
        try:
            self._begin()
            while self._wanted and self.may_begin and not renewing.done():
                await self._pause(min(self._begins_until - self._now(), self._timings.probe_seconds))
            if self._wanted and self._lost is None:
                log.error("failed to renew %s in time; stopping the work behind it", self.lease)
        finally:
            self._close()
            try:
                # Even if `begin` failed, some of the work may have begun.
                await self._drain()
                self._working = False
            finally:
                renewing.cancel()
                await asyncio.wait((renewing,))

    def _close(self) -> None:
        self._open = False
        self._changed.set()

    async def _drain(self) -> None:
        """Stop all work. If the work does not end, the fence expires, and `overrun_at` ends the process."""
        while True:
            try:
                await self._end()
            except Exception:
                log.exception("failed to stop the work behind %s; retrying", self.lease)
                await asyncio.sleep(self._retry())
            else:
                return

    async def _keep_renewing(self) -> None:
        """Renew the Lease until it is lost, or until the end of the work exceeds `handover_seconds`."""
        timings = self._timings
        stop_renewing_at = float("inf")
        renewed = True
        while self._now() < stop_renewing_at:
            usual = timings.renew_seconds * random.uniform(0.8, 1.0)  # noqa: S311 - spreads load
            await wait(self._look, at_most_seconds=usual if renewed else self._retry())
            renewed = await self._renew()
            if self._lost is not None:
                self._counts.lost += 1
                log.error("stopping the work behind %s: %s", self.lease, self._lost)
                return
            if not self._open and stop_renewing_at == float("inf"):
                stop_renewing_at = self._now() + timings.handover_seconds
        log.error(
            "failed to stop the work behind %s within %g s; the Lease expires", self.lease, timings.handover_seconds
        )

    async def _renew(self) -> bool:
        seconds = min(self._timings.call_seconds, max(0.0, self.lease.expires_at - self._now()))
        try:
            async with asyncio.timeout(seconds):
                await self.lease.renew()
        except LeaseLost as error:
            self._lost = str(error)
            return False
        except (ProviderError, TimeoutError) as error:
            self._counts.failures += 1
            log.warning("failed to renew %s: %s", self.lease, str(error) or "no answer in time")
            return False
        self._counts.renewals += 1
        self._renewed()
        return True

    def _renewed(self) -> None:
        timings, expires_at = self._timings, self.lease.expires_at
        self._ends_at = expires_at - timings.margin_seconds
        self._begins_until = expires_at - timings.drain_seconds

    async def _release(self) -> None:
        """Release the Lease, also after an acquisition whose response was lost."""
        if not self.lease.held:
            await self.lease.release()  # only resets the state of the Lease
            return
        try:
            async with self._slots, asyncio.timeout(2 * self._timings.call_seconds):
                await self.lease.release()
            self._counts.released += 1
            log.info("released %s", self.lease, extra={"identity": self.lease.identity})
        except (ProviderError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            log.warning("failed to release %s: %s; the next holder waits until it expires", self.lease, why)

    async def _pause(self, seconds: float) -> None:
        await wait(self._changed, at_most_seconds=seconds)

    def _retry(self) -> float:
        return self._timings.retry_seconds * random.uniform(1.0, 1.2)  # noqa: S311 - spreads load


async def wait(bell: asyncio.Event, *, at_most_seconds: float) -> None:
    """Wait until the event is set, or for `at_most_seconds`, and clear the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(_LEAST_SECONDS, at_most_seconds)):
            await bell.wait()
    bell.clear()
