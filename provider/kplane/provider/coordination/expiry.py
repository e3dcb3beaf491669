"""Watchdog that ends a process whose work outlasts its Lease."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["exit_on_expiry"]

_CHECK_SECONDS: Final = 0.5
"""Maximum time between checks. The time-out of a wait does not count the time that the machine sleeps."""


@contextlib.contextmanager
def exit_on_expiry(
    due_at: Callable[[], float], *, on_overrun: Callable[[], None] | None, now: Callable[[], float]
) -> Iterator[None]:
    """Call `on_overrun` once if the context is still open at the time `due_at()` of the clock `now`.

    A separate thread calls `on_overrun`, so that the watchdog works while the event loop hangs. With None, the watchdog
    is off.
    """
    if on_overrun is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(max(0.0, min(due_at() - now(), _CHECK_SECONDS))):
            if now() >= due_at() and not ended.is_set():
                on_overrun()
                return

    thread = threading.Thread(target=watch, name="overrun", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
