"""Workers, which call a reconcile function for the keys of a queue."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.aio.overflow import OverflowSlots, WorkerSlot
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.errors import ProviderError
from kplane.provider.logs import log_fields

__all__ = ["Controller", "Deadlines", "Result"]

T = TypeVar("T")
_log: Final = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

_LONG_SECONDS: Final = 5.0
"""Time after which a reconcile frees its worker, even without a pending API call, if a slot is left."""

Logger = logging.Logger | logging.LoggerAdapter[logging.Logger]


@dataclass(frozen=True, slots=True)
class Result:
    """Requests another call of the reconcile function, even without a change.

    The call comes after `requeue_after_seconds`; with `requeue`, after a backoff that grows until another result.
    """

    requeue_after_seconds: float | None = None
    requeue: bool = False


class _Attempt(WorkerSlot, Generic[K]):
    """A running reconcile."""

    __slots__ = ("key", "late", "task")

    def __init__(self, key: K, overflow: OverflowSlots, freed: Callable[[], None]) -> None:
        super().__init__(overflow, freed)
        self.key: Final = key
        self.late = False
        self.task: asyncio.Task[None] | None = None

    def give_up(self) -> None:
        """Cancel the reconcile, which has exceeded its timeout."""
        if self.task is not None:
            self.late = True
            self.task.cancel()


class Controller(Generic[K]):
    """Calls `reconcile(key)` for the keys of a queue, up to `workers` at once, and never twice at once for one key.

    A reconcile that raises, or takes longer than `timeout_seconds`, is logged and retried with a backoff. A reconcile
    that waits for a slow API server, or takes long, frees its worker for other keys; up to `waiting` reconciles may do
    so at once.

    `on_failure` is called with the key and the error before the retry; the error is a TimeoutError after the timeout.
    Log records of a reconcile carry its `fields`; `logger` logs failures.
    """

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Awaitable[Result | None]],
        *,
        queue: FairQueue[K],
        workers: int = 8,
        waiting: int = 0,
        timeout_seconds: float = 60.0,
        on_failure: Callable[[K, BaseException], Awaitable[None]] | None = None,
        fields: Callable[[K], Mapping[str, str]] | None = None,
        logger: Logger = _log,
    ) -> None:
        self.name: Final = name
        self.queue: Final = queue
        self._reconcile = reconcile
        self._workers = workers
        self._overflow = OverflowSlots(waiting)
        self._timeout_seconds = timeout_seconds
        self._on_failure = on_failure
        self._fields = fields
        self._log = logger
        self._attempts: dict[asyncio.Task[None], _Attempt[K]] = {}
        self._deadlines: Deadlines[_Attempt[K]] = Deadlines(timeout_seconds, _Attempt.give_up)
        self._patience: Deadlines[_Attempt[K]] | None = Deadlines(_LONG_SECONDS, self._long) if waiting else None
        self._context = contextvars.copy_context()
        self._ended: asyncio.Future[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of reconciles that wait for a response without a worker."""
        return len(self._overflow)

    def running_seconds(self) -> list[float]:
        """Return the age in seconds of each running reconcile."""
        return self._deadlines.running_seconds()

    @property
    def under_way(self) -> Collection[K]:
        """Keys of the running reconciles."""
        return [attempt.key for attempt in self._attempts.values()]

    async def run(self) -> None:
        """Work until cancelled, or until the queue is closed and empty; then cancel and await running reconciles."""
        self._context = contextvars.copy_context()
        self._ended = asyncio.get_running_loop().create_future()
        self.queue.on_ready(self._fill)
        try:
            self._fill()
            await self._ended
        finally:
            self._ended = None
            self.queue.on_ready(None)
            await self._cancel(list(self._attempts))
            self._deadlines.close()
            if self._patience is not None:
                self._patience.close()

    async def drain(self, belongs: Callable[[K], bool], *, grace_seconds: float) -> None:
        """Wait until no reconcile of these keys runs; cancel running reconciles after `grace_seconds`."""
        tasks = [task for task, attempt in self._attempts.items() if belongs(attempt.key)]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=grace_seconds)
            await self._cancel(left)

    async def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        await end_tasks(tasks, why=f"{self.name} ends it", logger=self._log)

    def _fill(self) -> None:
        """Start as many reconciles as there are free workers."""
        if self._ended is None:
            return
        while len(self._attempts) - len(self._overflow) < self._workers:
            key = self.queue.take()
            if key is None:
                if self.queue.closed and not self._attempts and not self._ended.done():
                    self._ended.set_result(None)
                return
            self._begin(key)

    def _begin(self, key: K) -> None:
        attempt = _Attempt(key, self._overflow, self._fill)
        # Use a fresh context: not the context of the last reconcile, nor of the source that added the key.
        task = asyncio.get_running_loop().create_task(
            self._attempt(attempt), name=f"{self.name} {key}", context=self._context.copy()
        )
        attempt.task = task
        self._attempts[task] = attempt
        task.add_done_callback(self._over, context=self._context)
        self._deadlines.begin(attempt)
        if self._patience is not None:
            self._patience.begin(attempt)

    def _over(self, task: asyncio.Task[None]) -> None:
        attempt = self._attempts.pop(task)
        self._stop_clocks(attempt)
        attempt.end()
        # The context of the task refers to the attempt: break the cycle, which only the garbage collector would free.
        attempt.task = None
        self.queue.done(attempt.key)
        error = task.exception() if not task.cancelled() else None
        if error is not None and self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)
        self._fill()

    def _stop_clocks(self, attempt: _Attempt[K]) -> None:
        self._deadlines.end(attempt)
        if self._patience is not None:
            self._patience.end(attempt)

    def _long(self, attempt: _Attempt[K]) -> None:
        # A server may also respond fast and endlessly, for example with page after page.
        attempt.let_go()
        if not attempt.left and self._patience is not None:
            self._patience.begin(attempt)

    async def _attempt(self, attempt: _Attempt[K]) -> None:
        attempt.take()
        with log_fields(**(self._fields(attempt.key) if self._fields is not None else {})):
            try:
                result = await self._reconcile(attempt.key)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - reported, logged and retried
                self._deadlines.end(attempt)
                await self._failed(attempt, error)
            else:
                self._deadlines.end(attempt)
                if attempt.late and attempt.task is not None:
                    attempt.task.uncancel()
                self._succeeded(attempt.key, result)

    def _succeeded(self, key: K, result: Result | None) -> None:
        if result is not None and result.requeue_after_seconds is not None:
            self.queue.forget(key)
            self.queue.requeue(key, result.requeue_after_seconds)
        elif result is not None and result.requeue:
            self.queue.retry(key)
        else:
            self.queue.forget(key)

    async def _failed(self, attempt: _Attempt[K], error: BaseException) -> None:
        key, task, late = attempt.key, attempt.task, attempt.late
        if late and task is not None:
            task.uncancel()
        # A cancellation without a request leaked out of the reconcile, and is a failure like any other.
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise error
        if self._on_failure is not None:
            failure = TimeoutError(f"it took longer than {self._timeout_seconds:g} s") if late else error
            await self._report(key, failure, to=self._on_failure)
        delay = self.queue.retry(key)
        again = f"retrying in {delay:.1f} s" if delay is not None else "no retry: its cluster has gone"
        if late:
            self._log.warning(
                "%s: failed to reconcile %s: it took longer than %g s; %s", self.name, key, self._timeout_seconds, again
            )
        elif isinstance(error, ProviderError):
            self._log.warning("%s: failed to reconcile %s: %s; %s", self.name, key, error, again)
        else:
            self._log.error("%s: failed to reconcile %s; %s", self.name, key, again, exc_info=error)

    async def _report(self, key: K, error: BaseException, *, to: Callable[[K, BaseException], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await to(key, error)
        except Exception:  # noqa: BLE001 - logged
            self._log.exception("%s: failed to report the failure of %s", self.name, key)


class Deadlines(Generic[T]):
    """Calls `over` for each item that began `seconds` ago and did not end; a single timer serves all items."""

    def __init__(self, seconds: float, over: Callable[[T], None]) -> None:
        self._seconds = seconds
        self._over = over
        # In the order of their due times, because all items have the same timeout.
        self._due: dict[T, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, item: T) -> None:
        """Start the timeout of an item."""
        loop = asyncio.get_running_loop()
        due = self._due[item] = loop.time() + self._seconds
        if self._timer is None:
            self._timer = loop.call_at(due, self._look)

    def end(self, item: T) -> None:
        """Stop the timeout of an item; no error if the timeout has passed or never began."""
        self._due.pop(item, None)

    def running_seconds(self) -> list[float]:
        """Return the seconds since the start of each item."""
        if not self._due:
            return []
        began = asyncio.get_running_loop().time() + self._seconds
        return [began - due for due in self._due.values()]

    def close(self) -> None:
        """Stop the timeouts of all items."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        # Event loops round to a millisecond: do not set the timer again if it fires that much too early.
        now = loop.time() + 0.001
        expired = []
        for item, due in self._due.items():
            if due > now:
                self._timer = loop.call_at(due, self._look)
                break
            expired.append(item)
        for item in expired:
            del self._due[item]
        for item in expired:
            self._over(item)
