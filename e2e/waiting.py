"""Waits for what a user was promised, and says what there was instead."""

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
    """Probe until the answer is accepted, and return it. An error of kubectl is an answer that is not accepted.

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
            raise AssertionError(f"{what}: not so after {timeout_seconds:.0f} s. Last seen: {last}")
        time.sleep(_POLL_SECONDS)


def quiet(what: str, probe: Callable[[], object], *, seconds: float = 5.0) -> None:
    """See that nothing happens for a while: the probe has to give something false until the end of it.

    Raises AssertionError with what it gave instead.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := probe():
            raise AssertionError(f"{what}: happened nevertheless: {found}")
        time.sleep(_POLL_SECONDS)
