"""Waits for what the demo says will happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kplane.cli.errors import DemoFailed
from kplane.embedded.errors import KubectlFailed

__all__ = ["wait_for"]

_POLL_SECONDS = 1.0
"""Each look is a kubectl, whose start takes a core some tenths of a second from what is waited for."""
_T = TypeVar("_T")


async def wait_for(
    what: str, probe: Callable[[], Awaitable[_T]], accept: Callable[[_T], bool], *, timeout_seconds: float = 180.0
) -> _T:
    """Probe until the answer is accepted, and return it. Errors of kubectl count as an answer not accepted.

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
            raise DemoFailed(f"{what}: not so after {timeout_seconds:.0f} s. Last seen: {last}")
        await asyncio.sleep(_POLL_SECONDS)
