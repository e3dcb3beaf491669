"""Event loop with simulated time, for tests of behaviour after minutes or days."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime as dt
import selectors
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, TypeVarTuple

from typing_extensions import override

__all__ = ["SteeredLoop", "utc_now"]

_TURN_SECONDS: Final = 1e-6
"""Simulated duration of a turn of the loop."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SteeredLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: an idle loop advances its clock to its next timer at once.

    So sleeps, timeouts, delays of requests and backoffs pass without a pause. Pass the class to `asyncio.Runner` as
    `loop_factory`. The clock `time` begins at 0; pass it as `now` to coordinators and Leases. FakeClusters write the
    loop's `utc_now` into objects. While a thread works for the loop, time passes as usual. Connections to other
    processes do not work in this loop, because their deadlines would pass first.
    """

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self._elapsed = 0.0
        self._began: Final = dt.datetime.now(dt.UTC)
        self._threads = 0

    @override
    def time(self) -> float:
        """Return the simulated seconds since the start of the loop."""
        return self._elapsed

    def utc_now(self) -> dt.datetime:
        """Return the simulated time of day, which begins at the time of the machine."""
        return self._began + dt.timedelta(seconds=self._elapsed)

    @override
    def run_in_executor(
        self, executor: concurrent.futures.Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._threads += 1
        future.add_done_callback(self._ended)
        return future

    @override
    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        # A thread joins the executor's threads. Since Python 3.12 the join has a time-out, which would pass at once.
        self._threads += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self._threads -= 1

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def pass_time(self, seconds: float | None, wait: Callable[[float | None], Any]) -> Any:
        """Advance the clock until `wait` returns events, at most by `seconds`; None is no limit. Return the events."""
        # Code that polls the clock until it advances would otherwise run for ever.
        self._elapsed += _TURN_SECONDS
        events = wait(0)
        if events or seconds == 0:
            return events
        if seconds is not None and not self._threads:
            self._elapsed += seconds
            return events
        began = time.monotonic()
        events = wait(seconds)
        self._elapsed += time.monotonic() - began
        return events


class _Selector(selectors.DefaultSelector):
    """Selector that waits in the simulated time of its loop."""

    def __init__(self, loop: SteeredLoop) -> None:
        super().__init__()
        self._loop: Final = loop

    @override
    def select(self, timeout: float | None = None) -> Any:
        return self._loop.pass_time(timeout, super().select)


def utc_now() -> dt.datetime:
    """Return the time of day: the simulated time within a SteeredLoop, otherwise the time of the machine."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    return loop.utc_now() if isinstance(loop, SteeredLoop) else dt.datetime.now(dt.UTC)
