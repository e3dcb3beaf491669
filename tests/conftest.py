"""Fixtures that every test may use."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

pytest_plugins = ["embedded.pytest_plugin"]

# How long an example takes depends on what else the machine does: no test is about that.
settings.register_profile("kplane", deadline=None)
settings.load_profile("kplane")


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """`await eventually(probe, accept, timeout=60.0)`: probe until accepted; on time-out show the last value."""

    async def wait(probe: Callable[[], Any], accept: Callable[[Any], bool] = bool, *, timeout: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout
        last: object = "nothing yet"
        while True:
            try:
                last = probe()
                if inspect.isawaitable(last):
                    last = await last
                if accept(last):
                    return last
            except Exception as error:  # noqa: BLE001 - whatever the probe meets is shown on time-out
                last = error
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout} s; last: {last!r}")
            await asyncio.sleep(0.05)

    return wait


@pytest.fixture
def hold_port() -> Iterator[Callable[[], int]]:
    """`hold_port()`: a free port of 127.0.0.1 for a server of the test, which nobody else is given until its end."""
    with contextlib.ExitStack() as held:

        def hold() -> int:
            # Bound and never listened on: with SO_REUSEADDR, which servers set, one of them may listen there; the
            # system gives the port neither to a connection nor to whoever asks for any.
            found = held.enter_context(socket.socket())
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(("127.0.0.1", 0))
            return int(found.getsockname()[1])

        yield hold
