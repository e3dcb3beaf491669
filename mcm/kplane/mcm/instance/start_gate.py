"""Keeps an instance from running where it cannot work, or must not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kplane.mcm.errors import McmError
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import TIMINGS, TenantLease
from kplane.mcm.reasons import Reason
from kplane.provider import Engagement
from kplane.provider.aio.backoff import Backoff, delay_after
from kplane.workloads import WorkloadsError

__all__ = ["GatePace", "Liveness", "StartGate"]

logger = logging.getLogger(__name__)

_FORGOTTEN: Final = 2
"""After so many times the longest wait without an end for this, an instance starts over with the shortest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePace:
    """Times in seconds; the defaults are for production, tests take shorter ones."""

    look: float = TIMINGS.retry_seconds
    """Between looks at the API server of an instance that runs. Each look renews the Lease."""
    timeout: float = 5.0
    """Deadline of a read. A write of the Lease may take half of `grace`, because it waits for admission webhooks."""
    retry: float = 5.0
    """Between looks while a renewal fails, and at most between looks while another program holds the Lease."""
    grace: float = TIMINGS.renew_deadline_seconds
    """Seconds without a renewal until the instance is ended; the rest of the Lease is for its end."""
    retry_initial: float = 1.0
    retry_maximum: float = 60.0
    stable: float = 60.0
    """After so many seconds of running, the next wait is the shortest again."""
    hung: float = 90.0
    """Seconds that an instance may leave its health check without an answer; kubeadm's static pods have 80 s."""
    hung_maximum: float = 900.0
    """The same for an instance that hangs repeatedly."""


class StartGate:
    """Starts the instance of one engagement, ends it if something blocks it, and starts it again when that is gone.

    A dead control plane costs one small request after growing waits (`retry_initial` to `retry_maximum`, with jitter).
    An API server that comes and goes does not reset the waits. A changed description, for example renewed credentials,
    is tried at once.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        lease: TenantLease | None,
        pace: GatePace,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Without `lease`, nothing blocks the instance.

        `admit` is awaited when the Lease is held, before each start. If it raises WorkloadsError or McmError, nothing
        starts.
        """
        self._instance = instance
        self._lease = lease
        self._pace = pace
        self._admit = admit
        self._backoff = Backoff(initial_seconds=pace.retry_initial, maximum_seconds=pace.retry_maximum)
        self._blocking: BlockingReason | None = None
        """What the last look has found."""
        self._renewed_at = 0.0
        """When the last look began that found nothing in the way."""
        self._started_at = 0.0
        self._liveness = Liveness(instance, initial_seconds=pace.hung, maximum_seconds=pace.hung_maximum)
        self._looking = asyncio.Lock()

    async def keep(self, engagement: Engagement) -> None:
        """Watch over the instance until cancelled."""
        while True:
            blocking = await self._look(engagement)
            if self._instance.running:
                await self._review(blocking, engagement)
            else:
                await self._try_start(blocking, engagement)
            await self._wait()

    async def _look(self, engagement: Engagement, *, seconds: float | None = None) -> BlockingReason | None:
        """Look within so many seconds; None: as long as one look may take."""
        async with self._looking:
            began = _now()
            self._blocking = await self._ask(engagement, seconds=self._try_seconds() if seconds is None else seconds)
            if self._blocking is None:
                self._renewed_at = began
            return self._blocking

    def _try_seconds(self) -> float:
        """Return how long a look may take: half of the grace, as in client-go, and no longer than the grace lasts."""
        pace = self._pace
        seconds = max(pace.timeout, pace.grace / 2)
        if not self._instance.running:
            return seconds
        return min(seconds, max(pace.timeout, self._renewed_at + pace.grace - _now()))

    async def _keep_looking(self, engagement: Engagement) -> None:
        while True:
            # No delay is left where the API server has not answered for long, and the turn decides what follows.
            await asyncio.sleep(self._delay() or self._pace.retry)
            await self._look(engagement)

    async def _ask(self, engagement: Engagement, *, seconds: float) -> BlockingReason | None:
        if self._lease is None:
            return None
        try:
            blocking = await self._lease.look(engagement.cluster.config, seconds=seconds, delayed=self._report_delay)
            self._instance.note_refusal(self._lease.refusal)
            return blocking  # noqa: TRY300 - what is reported of it may fail too
        except Exception as error:  # whatever it is that an API server makes of us, its instance is looked after
            name = engagement.cluster.name
            logger.exception("cluster %s: failed to check its API server", name)
            return BlockingReason(
                Reason.CANNOT_START,
                f"mcm failed to check its API server ({type(error).__name__}); see the log of mcm",
            )

    async def _report_delay(self, blocking: BlockingReason) -> None:
        """Report what holds up the write that an instance waits for; one that runs has its Lease still."""
        if not self._instance.running:
            await self._instance.hold(blocking)

    async def _admission(self) -> BlockingReason | None:
        try:
            if self._admit is not None:
                await self._admit()
        except (McmError, WorkloadsError) as error:
            return BlockingReason(Reason.CANNOT_START, str(error))
        return None

    async def _try_start(self, blocking: BlockingReason | None, engagement: Engagement) -> None:
        if blocking is not None:
            await self._instance.hold(blocking)
            return
        async with self._instance.turn():
            # Others wait for the turn, so it has no look that is not needed, and half of a short one is for the blame.
            if _now() - self._renewed_at >= self._pace.grace / 2:
                blocking = await self._look(engagement, seconds=self._pace.timeout / 2)
            blocking = blocking or await self._admission()
            if blocking is not None:
                await self._instance.hold(blocking)
            else:
                await self._instance.start(engagement)
                self._started_at = _now()

    async def _review(self, blocking: BlockingReason | None, engagement: Engagement) -> None:
        async def answers() -> bool:
            # In a turn, for which others wait. A look may wait for a webhook, and for the look before it.
            return self._lease is None or await self._lease.answers()

        # One that hangs is ended in a turn. That may be long after this look, and its Lease has to last until then.
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._keep_looking(engagement), name="renew the Lease of an instance")
            await self._liveness.review(answered=blocking is None, look=answers)
            _ = looking.cancel()
        if blocking is None:
            if _now() - self._started_at > self._pace.stable:
                self._backoff.reset()
            return
        # Whose own attempt has failed already need not wait for its next one.
        patient = blocking.reason is not Reason.FOREIGN_CONTROLLER_MANAGER and not self._instance.failed
        if not patient or _now() - self._renewed_at >= self._pace.grace:
            await self._instance.hold(blocking)

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._delay()):
                await self._instance.wait_followed()

    def _delay(self) -> float:
        pace, blocking = self._pace, self._blocking
        if self._instance.running:
            if blocking is None:
                # From the beginning of the last look, which may have waited for a webhook for long.
                return max(0.0, self._renewed_at + pace.look * random.uniform(0.8, 1.2) - _now())  # noqa: S311
            return max(0.0, min(pace.retry, self._renewed_at + pace.grace - _now()))
        delay = self._backoff.next_delay()
        foreign = blocking is not None and blocking.reason is Reason.FOREIGN_CONTROLLER_MANAGER
        return min(delay, pace.retry) if foreign else delay


class Liveness:
    """Looks at an instance each time that its API server is looked at, and ends one that does not answer for too long.

    It is what the livenessProbe of kube-controller-manager in a static pod is for (cmd/kubeadm/app/phases/controlplane/
    manifests.go), with a longer wait, because processors may be busy. It is for an instance that was ready before, and
    adds up the time since it is not, but only what is between two looks in a row which the API server answered. The
    wait doubles from `initial_seconds` to `maximum_seconds` with each end. `now` is the clock of
    `Instance.unready_since`.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        initial_seconds: float,
        maximum_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._instance = instance
        self._now = now
        self._initial_seconds = initial_seconds
        self._maximum_seconds = maximum_seconds
        self._ends = 0
        self._ended_at = 0.0
        self._answered_at: float | None = None
        """When its API server was looked at last; None if it did not answer then."""
        self._unready_since: float | None = None
        self._unready_seconds = 0.0
        """Of those since then, what counts."""

    async def review(self, *, answered: bool, look: Callable[[], Awaitable[bool]]) -> None:
        """Look; end it where that is due and, in its turn, still is.

        `answered` is whether its API server did just now, and `look` asks that again.
        """
        now, since = self._now(), self._instance.unready_since
        answered_at, self._answered_at = self._answered_at, now if answered else None
        if since != self._unready_since:
            self._unready_since, self._unready_seconds = since, 0.0
        if since is None or not answered:
            return
        if answered_at is not None:
            self._unready_seconds += now - max(since, answered_at)
        if now - self._ended_at > _FORGOTTEN * self._maximum_seconds:
            self._ends = 0
        patience = delay_after(self._ends, initial_seconds=self._initial_seconds, maximum_seconds=self._maximum_seconds)
        if self._unready_seconds >= patience and await self._instance.end_hung(since, look=look):
            self._ends += 1
            self._ended_at = self._now()


def _now() -> float:
    return asyncio.get_running_loop().time()
