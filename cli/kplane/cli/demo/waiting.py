"""Polling until a condition of the demo holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from kplane.cli.errors import DemoFailed
from kplane.embedded.errors import KubectlFailed

__all__ = ["SOON", "wait_for"]

_POLL_SECONDS: Final = 0.5
"""Interval of probes. A probe that starts kubectl takes some tenths of a second of CPU time."""
SOON: Final = 0.1
"""Interval of probes that start no program."""
_T = TypeVar("_T")


async def wait_for(
    what: str,
    probe: Callable[[], Awaitable[_T]],
    accept: Callable[[_T], bool],
    *,
    timeout_seconds: float = 180.0,
    poll_seconds: float | None = None,
) -> _T:
    """Probe until `accept` returns True for an answer, and return the answer. Errors of kubectl are retried.

    Raises `DemoFailed` with the last answer or error after `timeout_seconds`.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        last: object
        try:
            last = answer = await probe()
            if accept(answer):
                return answer
        except KubectlFailed as error:
            last = error
        if time.monotonic() > deadline:
            raise DemoFailed(f"failed to wait for {what}: not after {timeout_seconds:.0f} s; last seen: {last}")
        await asyncio.sleep(_POLL_SECONDS if poll_seconds is None else poll_seconds)
