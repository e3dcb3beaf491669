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
        while True:
            left = due_at() - now()
            if left <= 0:
                on_overrun()
                return
            if ended.wait(min(left, _LOOK_SECONDS)):
                return

    thread = threading.Thread(target=watch, name="fences", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
