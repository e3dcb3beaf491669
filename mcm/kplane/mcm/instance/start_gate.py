"""Gate of an instance: starts it while it has its permit, and stops it if the permit expires or the instance hangs."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.state import BlockingReason
from kplane.mcm.instance.tenant_lease import TIMINGS
from kplane.mcm.reasons import Reason
from kplane.provider import Engagement
from kplane.provider.aio.backoff import Backoff, delay_after

__all__ = ["GatePace", "Liveness", "StartGate"]

_FORGOTTEN: Final = 2
"""Multiple of the longest wait; without a kill for this long, the wait of an instance is the shortest again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatePace:
    """Times in seconds. The defaults are for production; tests use shorter times."""

    look: float = TIMINGS.retry_seconds
    """Interval of renewals of the Lease of a running instance."""
    timeout: float = 5.0
    """Deadline of a read. A write of the Lease may take half of `grace`, because it waits for admission webhooks."""
    retry: float = 5.0
    """Interval of renewals while they fail, and longest interval while another program holds the Lease."""
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
    """Starts the instance of an engagement while it has its permit, stops it without, and starts it again.

    A dead control plane costs one small request after growing waits (`retry_initial` to `retry_maximum`, with jitter).
    An API server that comes and goes does not reset the waits. A changed description, for example with renewed
    credentials, is tried at once.
    """

    def __init__(self, instance: Instance, *, pace: GatePace) -> None:
        self._instance = instance
        self._permit = instance.permit
        self._pace = pace
        self._backoff = Backoff(initial_seconds=pace.retry_initial, maximum_seconds=pace.retry_maximum)
        self._started_at = 0.0
        self._liveness = Liveness(instance, initial_seconds=pace.hung, maximum_seconds=pace.hung_maximum)

    async def keep(self, engagement: Engagement) -> None:
        """Start, stop and check the instance until cancelled."""
        while True:
            blocking = await self._renew(engagement)
            if self._instance.running:
                await self._review(blocking, engagement)
            elif blocking is not None:
                await self._instance.hold(blocking)
            else:
                await self._start(engagement)
            await self._wait()

    async def _renew(self, engagement: Engagement) -> BlockingReason | None:
        """Renew the Leases, for half of the grace, as in client-go, and at most for the rest of the grace."""
        pace = self._pace
        seconds = max(pace.timeout, pace.grace / 2)
        if self._instance.running:
            seconds = min(seconds, max(pace.timeout, pace.grace - self._permit.age))
        config = engagement.cluster.config
        blocking = await self._permit.renew(config, seconds=seconds, delayed=self._report_delay)
        self._instance.note_refusal(self._permit.refusal)
        return blocking

    async def _keep_renewing(self, engagement: Engagement) -> None:
        while True:
            # The delay is 0 if the API server has not answered for long. The turn decides how to continue.
            await asyncio.sleep(self._delay() or self._pace.retry)
            await self._renew(engagement)

    async def _report_delay(self, blocking: BlockingReason) -> None:
        """Report why the write of the Lease is delayed, unless the instance runs: its Lease is still valid then."""
        if not self._instance.running:
            await self._instance.hold(blocking)

    async def _start(self, engagement: Engagement) -> None:
        async with self._permit.acquired(engagement.cluster.config, delayed=self._report_delay) as blocking:
            if blocking is not None:
                await self._instance.hold(blocking)
            else:
                await self._instance.start(engagement)
                self._started_at = _now()

    async def _review(self, blocking: BlockingReason | None, engagement: Engagement) -> None:
        # A hung instance is killed in a turn, which may come long after this renewal. Until then, the Lease is renewed.
        # In the turn, for which other instances wait, a read shows whether the API server answers: a write may wait for
        # a webhook.
        async with asyncio.TaskGroup() as tasks:
            renewing = tasks.create_task(self._keep_renewing(engagement), name="renew the Lease of an instance")
            await self._liveness.review(answered=blocking is None, look=self._permit.observe)
            _ = renewing.cancel()
        if blocking is None:
            if _now() - self._started_at > self._pace.stable:
                self._backoff.reset()
            return
        # An instance that already failed by itself is held at once, because the grace is for running instances.
        patient = blocking.reason is not Reason.FOREIGN_CONTROLLER_MANAGER and not self._instance.failed
        if not patient or self._permit.expired:
            await self._instance.hold(blocking)

    async def _wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._delay()):
                await self._instance.wait_followed()

    def _delay(self) -> float:
        pace, blocking, age = self._pace, self._permit.blocking, self._permit.age
        if self._instance.running:
            if blocking is None:
                # Counts from the start of the last renewal, which may have waited long for a webhook.
                return max(0.0, pace.look * random.uniform(0.8, 1.2) - age)  # noqa: S311
            return max(0.0, min(pace.retry, pace.grace - age))
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
