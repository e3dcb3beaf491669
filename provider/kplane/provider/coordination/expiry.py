"""Ends a process whose work outlasts its Lease."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["exit_on_expiry"]

_LOOK_SECONDS: Final = 0.5
"""A thread that waits longer would not notice that the machine slept."""


@contextlib.contextmanager
def exit_on_expiry(
    due_at: Callable[[], float], *, on_overrun: Callable[[], None] | None, now: Callable[[], float]
) -> Iterator[None]:
    """Call `on_overrun` once if this context is still open at `due_at()`, by the clock `now`. With None, do nothing.

    A thread of its own calls it, so that this works while the event loop hangs.
    """
    if on_overrun is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(max(0.0, min(due_at() - now(), _LOOK_SECONDS))):
            if now() >= due_at() and not ended.is_set():
                on_overrun()
                return

    thread = threading.Thread(target=watch, name="overrun", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
