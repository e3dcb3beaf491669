"""Ends a process whose work outlasts what allowed it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

__all__ = ["watched"]

_LOOK_SECONDS: Final = 0.5
"""A thread that waits does not notice that the machine slept."""


@contextlib.contextmanager
def watched(
    due_at: Callable[[], float], *, on_overrun: Callable[[], None] | None, now: Callable[[], float]
) -> Iterator[None]:
    """Have a thread call `on_overrun` once, when it is later than `due_at()` by `now`; None: nobody looks.

    A thread, so that it comes to pass in a process whose loop hangs as well.
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
