"""Leader election: the process that holds a Lease works."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

from kplane.provider.aio.cancellation import asked_to_end
from kplane.provider.cache.event import Event
from kplane.provider.cache.informer import Informer
from kplane.provider.client.client import Client
from kplane.provider.client.resources import LEASES
from kplane.provider.coordination.expiry import exit_on_expiry
from kplane.provider.coordination.lease import Lease, clock
from kplane.provider.errors import LeaseLost, ProviderError

__all__ = ["Election", "end_process"]

_log: Final = logging.getLogger(__name__)

_MARGIN_SECONDS: Final = 0.5
"""Time before the expiry of the Lease at which the process is ended, because the exit takes time too."""
_REPORT_SECONDS: Final = 0.2
"""Maximum time, within the margin, to write the reason of the exit."""
_JITTER: Final = 0.2


def end_process() -> None:
    """End this process at once, even if its output blocks."""
    try:
        # Write in another thread: a full pipe or a hanging disk can block the write.
        reporting = threading.Thread(target=_report_end, name="last words", daemon=True)
        reporting.start()
        reporting.join(_REPORT_SECONDS)
    finally:
        os._exit(1)


def _report_end() -> None:
    with contextlib.suppress(OSError):
        os.write(2, b'{"level": "critical", "message": "the Lease ran out while work went on; the process is ended"}\n')


class Election:
    """Runs work only while it holds a Lease.

    If the Lease cannot be renewed in time, the work is cancelled and awaited. If the work does not end before the
    expiry of the Lease, `on_overrun` is called in a separate thread, even if the loop hangs; None disables the call.
    `watching` is a client that watches the Lease, to notice its release, deletion or edit at once; with None, the Lease
    is read every `retry_seconds`. `on_wait` is called after each read that finds another holder; `run` raises its
    exceptions.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        watching: Client | None = None,
        on_overrun: Callable[[], None] | None = end_process,
        on_wait: Callable[[], None] | None = None,
        now: Callable[[], float] = clock,
    ) -> None:
        self.lease: Final = lease
        self._watching = watching
        self._on_wait = on_wait
        self._on_overrun = on_overrun
        self._now = now
        self._bell = asyncio.Event()

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the Lease, then run `work()` until it ends.

        When cancelled, it cancels the work, renews the Lease until the work has ended, then releases the Lease, so that
        the next holder starts at once. Raises LeaseLost, after the work has ended, if the Lease was lost. Raises the
        errors of the work.
        """
        try:
            async with self._listening():
                try:
                    await self._acquire()
                    _log.info("acquired %s: starting work", self.lease, extra={"identity": self.lease.identity})
                    await self._work(work)
                finally:
                    await self._release()
        except Exception as error:
            if asked_to_end():
                # A cancellation during the end of the work: the caller must not stand for election again.
                raise asyncio.CancelledError from error
            raise

    async def _acquire(self) -> None:
        logged: str | None = None
        while True:
            try:
                if await self.lease.try_acquire():
                    return
                if self._on_wait is not None:
                    self._on_wait()
                # Try again as soon as the Lease is free.
                pause = min(self._retry(), self.lease.free_at - self._now())
                pause = pause if pause > 0 else self._retry()
                problem = self.lease.obstacle
            except ProviderError as error:
                pause, problem = self._retry(), f"failed to acquire {self.lease}: {error}"
            if problem != logged:
                _log.info("waiting: %s", problem)
                logged = problem
            await self._pause(pause)

    async def _work(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        renewing = asyncio.create_task(self._keep_renewing(), name=f"renew {self.lease}")
        working = asyncio.create_task(work(), name=f"work under {self.lease}")
        stopped: asyncio.CancelledError | None = None
        with exit_on_expiry(
            lambda: self.lease.expires_at - _MARGIN_SECONDS, on_overrun=self._on_overrun, now=self._now
        ):
            try:
                await asyncio.wait((renewing, working), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError as error:
                stopped = error
            # Renew until the work has ended, if possible.
            failure = await _ended(working)
            lost = await _ended(renewing)
        causes: list[BaseException] = [cause for cause in (stopped, lost, failure) if cause is not None]
        for cause in causes[1:]:
            _log.error("%s: %s", self.lease, cause, exc_info=cause if cause is failure else None)
        if causes:
            raise causes[0]

    async def _keep_renewing(self) -> None:
        timings = self.lease.timings
        while True:
            deadline = self.lease.renewed_at + timings.renew_deadline_seconds
            await self._pause(min(timings.retry_seconds, max(0.0, deadline - self._now())))
            try:
                async with asyncio.timeout(max(0.0, deadline - self._now())):
                    await self.lease.renew()
            except LeaseLost:
                raise
            except (ProviderError, TimeoutError) as error:
                why = str(error) or "no answer in time"
                _log.warning("failed to renew %s: %s", self.lease, why)
                if self._now() >= deadline:
                    seconds = timings.renew_deadline_seconds
                    raise LeaseLost(f"{self.lease} could not be renewed for {seconds:g} s: {why}") from error

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(max(0.0, self.lease.expires_at - self._now())):
                await self.lease.release()
        except (ProviderError, TimeoutError) as error:
            why = str(error) or "no answer in time"
            _log.warning("failed to release %s: %s; the next holder waits until it expires", self.lease, why)

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        if self._watching is None:
            yield
            return
        informer = Informer(self._watching, LEASES, namespace=self.lease.namespace, name=self.lease.name)
        task = asyncio.create_task(informer.run(self._lease_changed), name=f"watch {self.lease}")
        try:
            yield
        finally:
            await _ended(task)

    def _lease_changed(self, event: Event) -> None:
        holder = (event.object.get("spec") or {}).get("holderIdentity")
        # Ignore renewals: a renewal, by this process or another holder, does not change the holder.
        if event.kind == "DELETED" or not holder or (self.lease.held and holder != self.lease.identity):
            self._bell.set()

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        self._bell.clear()

    def _retry(self) -> float:
        return self.lease.timings.retry_seconds * random.uniform(1.0, 1.0 + _JITTER)  # noqa: S311 - spreads load


async def _ended(task: asyncio.Task[None]) -> Exception | None:
    """Cancel a task and wait for its end, however often the caller is cancelled; return its failure."""
    task.cancel()
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait((task,))
    failure = None if task.cancelled() else task.exception()
    if failure is not None and not isinstance(failure, Exception):
        raise failure
    return failure
