"""Time that passes at once, for tests of what happens after minutes or days."""

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
"""So long takes what is done at once."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SteeredLoop(asyncio.SelectorEventLoop):
    """An event loop that does not wait: when nothing is left to do, it is at once as late as its next timer.

    So sleeps, timeouts, delays of requests and backoffs pass without a pause. `asyncio.Runner` takes it as its
    `loop_factory`. Its clock `time` begins at 0; give it as `now` to coordinators and Leases. FakeClusters write its
    `utc_now` into objects. While a thread works for the loop, time passes as usual. Connections to other processes do
    not work in it, because their deadlines would pass first.
    """

    def __init__(self) -> None:
        super().__init__(_Selector(self))
        self._elapsed = 0.0
        self._began: Final = dt.datetime.now(dt.UTC)
        self._threads = 0

    @override
    def time(self) -> float:
        """Return the seconds that have passed in it."""
        return self._elapsed

    def utc_now(self) -> dt.datetime:
        """Return the time of day, which began as that of the machine."""
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
    async def shutdown_default_executor(self, *given: Any, **named: Any) -> None:
        # A thread joins the others. Since Python 3.12 it has a time-out, which would pass at once.
        self._threads += 1
        try:
            await super().shutdown_default_executor(*given, **named)
        finally:
            self._threads -= 1

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._threads -= 1

    def pass_time(self, seconds: float | None, wait: Callable[[float | None], Any]) -> Any:
        """Let time pass until something is to be done, which `wait` waits for, or for so many seconds."""
        # Code that waits until the clock has moved would wait for ever otherwise.
        self._elapsed += _TURN_SECONDS
        found = wait(0)
        if found or seconds == 0:
            return found
        if seconds is not None and not self._threads:
            self._elapsed += seconds
            return found
        began = time.monotonic()
        found = wait(seconds)
        self._elapsed += time.monotonic() - began
        return found


class _Selector(selectors.DefaultSelector):
    """Waits in the time of its loop."""

    def __init__(self, loop: SteeredLoop) -> None:
        super().__init__()
        self._loop: Final = loop

    @override
    def select(self, timeout: float | None = None) -> Any:
        return self._loop.pass_time(timeout, super().select)


def utc_now() -> dt.datetime:
    """Return the time of day: in a SteeredLoop its own."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    return loop.utc_now() if isinstance(loop, SteeredLoop) else dt.datetime.now(dt.UTC)
