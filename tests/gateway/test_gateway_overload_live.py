"""A real Envoy with little memory sheds load, and survives it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.workloads import find_processes

from .attacker import exchange, http1, statuses
from .fleet import SERVING_CA
from .slow_server import PATH, SlowServer, slow_server

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

_MIB = 1 << 20
_MEMORY = 64 * _MIB
"""Memory limit of Envoy. Its heap takes a quarter of that without requests."""
_BODY = bytes(3 * _MIB)
_REQUESTS = 200


@pytest.fixture
async def small(envoy: Path, tmp_path: Path, hold_port: Callable[[], int]) -> AsyncIterator[SlowServer]:
    """Serves control plane `one` by an Envoy with little memory."""
    async with slow_server(envoy, tmp_path, hold_port=hold_port, memory_bytes=_MEMORY) as server:
        yield server


def _anonymous_memory(pid: int) -> int:
    """Return the anonymous memory of a process in bytes."""
    return int(re.findall(r"RssAnon:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text())[0]) << 10


async def test_envoy_with_little_memory_survives_large_bodies(
    small: SlowServer, eventually: Callable[..., Any]
) -> None:
    """The API server reads no body, so that all bodies stay in Envoy as far as it reads them."""
    runtime = small.directory / "runtime" / "envoy"
    (envoy,) = find_processes(runtime)
    headers = ("Authorization: Bearer t", f"Content-Length: {len(_BODY)}")
    sent = http1(f"{PATH}?large", *headers, method="POST") + _BODY

    async def send() -> list[int]:
        try:
            return statuses(await exchange(small.serving.port, sent, ca=SERVING_CA.certificate, seconds=240.0))
        except (OSError, EOFError):
            return []  # Envoy reset this stream to free its memory

    requests = [asyncio.create_task(send(), name="large body") for _ in range(_REQUESTS)]
    # Envoy refuses requests once its heap is nearly full, while other requests wait for the API server.
    await eventually(
        lambda: [request.result() for request in requests if request.done()],
        lambda answers: any(503 in answer for answer in answers),
        timeout=240.0,
    )
    assert find_processes(runtime) == [envoy]
    assert _anonymous_memory(envoy) < _MEMORY
    small.may_answer("large")
    answers = Counter(code for answer in await asyncio.gather(*requests) for code in answer)
    assert answers[503]
    # The same Envoy serves again.
    small.may_answer("later")

    async def code() -> list[int]:
        return statuses(await small.send("later", "Authorization: Bearer t", "Content-Length: 0"))

    await eventually(code, lambda codes: codes == [201])
    assert find_processes(runtime) == [envoy]
