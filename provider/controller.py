"""Workers that bring the world in line with what keys stand for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from provider.errors import ProviderError, QueueClosed
from provider.logs import log_fields
from provider.queue import WorkQueue
from provider.waiting import Place, Room, unanswered

__all__ = ["Controller", "Result"]

log: Final = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

_LONG_SECONDS: Final = 5.0
"""After this a reconcile leaves its worker whatever it does, where it may."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile asks for: to be called again in `requeue_after_seconds` even if nothing changes."""

    requeue_after_seconds: float | None = None


class Controller(Generic[K]):
    """Calls `reconcile(key)` for the keys of a queue, up to `workers` at once, never one key twice at once.

    A reconcile that raises, or takes longer than `timeout_seconds`, is logged and tried again with growing delays. One
    that waits for an API server which is slow to answer leaves its worker to other keys, and so does one that takes
    long; up to `waiting` may do so besides, so that servers which say nothing delay nobody else's keys.

    Whoever counts failures, or tells of them, is called by `on_failure` with the key and the error before the next try:
    a TimeoutError where the time was up, for the reconcile itself saw no more of that than its cancellation. What is
    logged of a key, by the reconcile and of its failures, carries its `fields`.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result | None]],
        *,
        queue: WorkQueue[K],
        workers: int = 8,
        waiting: int = 0,
        timeout_seconds: float = 60.0,
        on_failure: Callable[[K, BaseException], Awaitable[None]] | None = None,
        fields: Callable[[K], Mapping[str, str]] | None = None,
    ) -> None:
        self.name: Final = name
        self.queue: Final = queue
        self._reconcile = reconcile
        self._workers = workers
        self._room = Room(waiting)
        self._timeout_seconds = timeout_seconds
        self._on_failure = on_failure
        self._fields = fields

    @property
    def waiting(self) -> int:
        """How many reconciles wait for an answer without a worker now."""
        return len(self._room)

    async def run(self) -> None:
        """Work until cancelled (reconciles under way are cancelled and awaited), or the queue is closed and empty."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(tasks), name=f"{self.name} worker {number}")

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                key = await self.queue.get()
            except QueueClosed:
                return
            place = Place(self._room)
            tasks.create_task(self._attempt(key, place), name=f"{self.name} {key}")
            await place.worker_free()

    async def _attempt(self, key: K, place: Place) -> None:
        place.take()
        try:
            # A server may also answer at once, and never come to an end: with one page after the other, for example.
            fields = self._fields(key) if self._fields is not None else {}
            with unanswered(patience_seconds=_LONG_SECONDS), log_fields(**fields):
                await self._handle(key)
        finally:
            place.end()
            self.queue.done(key)

    async def _handle(self, key: K) -> None:
        deadline = asyncio.timeout(self._timeout_seconds)
        try:
            async with deadline:
                result = await self._reconcile(key)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            # A cancellation that nobody asked of this task came out of the reconcile, and is a failure like any other.
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            if self._on_failure is not None:
                late = TimeoutError(f"it took longer than {self._timeout_seconds:g} s")
                await self._report(key, late if deadline.expired() else error, to=self._on_failure)
            delay = self.queue.retry(key)
            if deadline.expired():
                log.warning(
                    "%s: %s took longer than %g s, again in %.1f s", self.name, key, self._timeout_seconds, delay
                )
            elif isinstance(error, ProviderError):
                log.warning("%s: %s failed, again in %.1f s: %s", self.name, key, delay, error)
            else:
                log.exception("%s: %s failed, again in %.1f s", self.name, key, delay)
            return
        self.queue.forget(key)
        if result is not None and result.requeue_after_seconds is not None:
            self.queue.add_after(key, result.requeue_after_seconds)

    async def _report(self, key: K, error: BaseException, *, to: Callable[[K, BaseException], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await to(key, error)
        except Exception:
            log.exception("%s: the failure of %s could not be told", self.name, key)
