"""Waits for an expected state, and reports the last state at the timeout."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from e2e.kubectl import KubectlFailed

__all__ = ["eventually", "quiet"]

_POLL_SECONDS = 0.4
_T = TypeVar("_T")


def eventually(
    what: str, probe: Callable[[], _T], accept: Callable[[_T], bool] = bool, *, timeout_seconds: float = 120.0
) -> _T:
    """Call `probe` until `accept` accepts its answer, and return that answer. Errors of kubectl are retried.

    Raises AssertionError with the last answer or error after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        last: object
        try:
            last = answer = probe()
            if accept(answer):
                return answer
        except KubectlFailed as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(f"failed to wait for {what}: not after {timeout_seconds:.0f} s; last seen: {last}")
        time.sleep(_POLL_SECONDS)


def quiet(what: str, probe: Callable[[], object], *, seconds: float = 5.0) -> None:
    """Check that `probe` returns a false value for `seconds`. Raises AssertionError with any other answer."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := probe():
            raise AssertionError(f"failed to keep quiet: {what}: {answer}")
        time.sleep(_POLL_SECONDS)
