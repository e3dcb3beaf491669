"""Virtual time, with a network, for processes that share Leases."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable
from typing import TypeVar

import pytest

from kplane.provider import Conflict, NotFound, Unreachable
from kplane.provider.errors import Invalid
from kplane.provider.testing import SteeredLoop

T = TypeVar("T")


@pytest.fixture(scope="session")
def made_up_time() -> type[SteeredLoop]:
    """An event loop in virtual time: `asyncio.Runner(loop_factory=made_up_time)`. Hours pass at once."""
    return SteeredLoop


class Wire:
    """The wire from a process to its API server, in virtual time. Requests and responses arrive late or never."""

    def __init__(self, *, patience_seconds: float, uniform: Callable[[float, float], float] = random.uniform) -> None:
        self._patience_seconds = patience_seconds
        self._uniform = uniform
        self.slowness = 0.02
        self.cut = False
        self.deaf = False
        """If true, requests arrive and responses are lost."""

    async def call(self, act: Callable[[], T]) -> T:
        """Send a call to the server, and return its response."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if not self.cut:
            # A sent request arrives, even if its caller was cancelled.
            loop.call_later(self.delay(), self._arrive, act, answer)
        try:
            async with asyncio.timeout(self._patience_seconds):
                return await answer
        except TimeoutError:
            raise Unreachable("no answer", kind="timeout") from None

    def delay(self) -> float:
        return self._uniform(0, self.slowness)

    def _arrive(self, act: Callable[[], T], answer: asyncio.Future[T]) -> None:
        settle: Callable[[], None]
        try:
            settle = functools.partial(answer.set_result, act())
        except (NotFound, Conflict, Invalid) as error:
            settle = functools.partial(answer.set_exception, error)
        if not self.deaf:
            asyncio.get_running_loop().call_later(self.delay(), lambda: answer.done() or settle())


@pytest.fixture(scope="session")
def new_wire() -> type[Wire]:
    """Create the connection of a process: `new_wire(patience_seconds=…)`."""
    return Wire
