"""Gate of an instance: keeps it from running if it cannot work, or must not run."""

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
"""Multiple of the longest wait; without a kill for this long, the wait of an instance is the shortest again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePace:
    """Times in seconds. The defaults are for production; tests use shorter times."""

    look: float = TIMINGS.retry_seconds
    """Interval of looks at the API server of a running instance. Each look renews the Lease."""
    timeout: float = 5.0
    """Deadline of a read. A write of the Lease may take half of `grace`, because it waits for admission webhooks."""
    retry: float = 5.0
    """Interval of looks while a renewal fails, and longest interval while another program holds the Lease."""
    grace: float = TIMINGS.renew_deadline_seconds
    """Time without a renewal until the instance is stopped; the rest of the Lease is time for its end."""
    retry_initial: float = 1.0
    retry_maximum: float = 60.0
    stable: float = 60.0
    """Time of running after which the next wait is the shortest again."""
    hung: float = 90.0
    """Time for which an instance may leave its health check without an answer; kubeadm's static pods have 80 s."""
    hung_maximum: float = 900.0
    """Longest such time, for an instance that hangs repeatedly."""


class StartGate:
    """Starts the instance of an engagement, stops it if something blocks it, and starts it again without the block.

    A dead control plane costs one small request after growing waits (`retry_initial` to `retry_maximum`, with jitter).
    An API server that comes and goes does not reset the waits. A changed description, for example with renewed
    credentials, is tried at once.
    """

    def __init__(
        self,
        instance: Instance,
        *,
        lease: TenantLease | None,
        pace: GatePace,
        admit: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Without `lease`, no Lease blocks the instance.

        `admit` is awaited before each start, after the Lease is held. If it raises WorkloadsError or McmError, the
        instance does not start.
        """
        self._instance = instance
        self._lease = lease
        self._pace = pace
        self._admit = admit
        self._backoff = Backoff(initial_seconds=pace.retry_initial, maximum_seconds=pace.retry_maximum)
        self._blocking: BlockingReason | None = None
        """Result of the last look."""
        self._renewed_at = 0.0
        """Start time of the last look without a blocking reason."""
        self._started_at = 0.0
        self._liveness = Liveness(instance, initial_seconds=pace.hung, maximum_seconds=pace.hung_maximum)
        self._looking = asyncio.Lock()

    async def keep(self, engagement: Engagement) -> None:
        """Start, stop and check the instance until cancelled."""
        while True:
            blocking = await self._look(engagement)
            if self._instance.running:
                await self._review(blocking, engagement)
            else:
                await self._try_start(blocking, engagement)
            await self._wait()

    async def _look(self, engagement: Engagement, *, seconds: float | None = None) -> BlockingReason | None:
        """Look at the API server for at most `seconds`; None: for the longest time that a look may take."""
        async with self._looking:
            began = _now()
            self._blocking = await self._ask(engagement, seconds=self._try_seconds() if seconds is None else seconds)
            if self._blocking is None:
                self._renewed_at = began
            return self._blocking

    def _try_seconds(self) -> float:
        """Return the longest time of a look: half of the grace, as in client-go, and at most the rest of the grace."""
        pace = self._pace
        seconds = max(pace.timeout, pace.grace / 2)
        if not self._instance.running:
            return seconds
        return min(seconds, max(pace.timeout, self._renewed_at + pace.grace - _now()))

    async def _keep_looking(self, engagement: Engagement) -> None:
        while True:
            # The delay is 0 if the API server has not answered for long. The turn decides how to continue.
            await asyncio.sleep(self._delay() or self._pace.retry)
            await self._look(engagement)

    async def _ask(self, engagement: Engagement, *, seconds: float) -> BlockingReason | None:
        if self._lease is None:
            return None
        try:
            blocking = await self._lease.look(engagement.cluster.config, seconds=seconds, delayed=self._report_delay)
            self._instance.note_refusal(self._lease.refusal)
            return blocking  # noqa: TRY300 - reporting the refusal may fail too
        except Exception as error:  # an answer of a hostile API server must not stop the gate of its instance
            name = engagement.cluster.name
            logger.exception("cluster %s: failed to check its API server", name)
            return BlockingReason(
                Reason.CANNOT_START,
                f"mcm failed to check its API server ({type(error).__name__}); see the log of mcm",
            )

    async def _report_delay(self, blocking: BlockingReason) -> None:
        """Report why the write of the Lease is delayed, unless the instance runs: its Lease is still valid then."""
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
            # Other instances wait for this turn. So the gate looks again only if the last look is old. The look is
            # short, and as much time again is for finding the cause of a failure.
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
            # Other instances wait for the turn. A look may wait for a webhook, and for the look before.
            return self._lease is None or await self._lease.answers()

        # A hung instance is killed in a turn, which may come long after this look. Until then, the Lease is renewed.
        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(self._keep_looking(engagement), name="renew the Lease of an instance")
            await self._liveness.review(answered=blocking is None, look=answers)
            _ = looking.cancel()
        if blocking is None:
            if _now() - self._started_at > self._pace.stable:
                self._backoff.reset()
            return
        # An instance that already failed by itself is held at once, because the grace is for running instances.
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
                # Counts from the start of the last look, which may have waited long for a webhook.
                return max(0.0, self._renewed_at + pace.look * random.uniform(0.8, 1.2) - _now())  # noqa: S311
            return max(0.0, min(pace.retry, self._renewed_at + pace.grace - _now()))
        delay = self._backoff.next_delay()
        foreign = blocking is not None and blocking.reason is Reason.FOREIGN_CONTROLLER_MANAGER
        return min(delay, pace.retry) if foreign else delay


class Liveness:
    """Liveness probe of an instance: kills it if it does not answer its health check for too long.

    The probe has the purpose of kube-controller-manager's livenessProbe in a static pod (cmd/kubeadm/app/phases/
    controlplane/manifests.go), with a longer wait, because CPUs may be busy. The probe applies to an instance that was
    ready before. Unready time counts only between two looks in a row that the API server answered. The wait doubles
    from `initial_seconds` to `maximum_seconds` with each kill. `now` is the clock of `Instance.unready_since`.
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
        """Time of the last look at the API server; None if it did not answer then."""
        self._unready_since: float | None = None
        self._unready_seconds = 0.0
        """Part of the time since `_unready_since` that counts."""

    async def review(self, *, answered: bool, look: Callable[[], Awaitable[bool]]) -> None:
        """Add up unready time, and kill the instance if the wait is over and, in its turn, it is still unready.

        `answered` is whether the API server answered just now; `look` asks again in the turn.
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
