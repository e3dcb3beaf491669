"""A real Envoy with little memory sheds load, and survives it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from kplane.workloads import find_processes

from .attacker import http1, statuses
from .fleet import SERVING_CA
from .slow_server import PATH, SlowServer, slow_server

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

_MIB = 1 << 20
_EMPTY = 4 * _MIB
"""Memory limit that Envoy exceeds without a request: its heap has 6 MiB then."""
_SMALL = 24 * _MIB
"""Memory limit for some of the large bodies. All of them take 28 MiB of the heap, and three quarters are for the heap.
"""
_BODY = bytes(3 * _MIB)
_REQUESTS = 200
_HANDSHAKES = 10
"""Maximum number of TLS handshakes at a time: Envoy ends a handshake that takes longer than 10 s."""


@pytest.fixture
def limited(
    envoy: Path, tmp_path: Path, hold_port: Callable[[], int]
) -> Callable[[int], AbstractAsyncContextManager[SlowServer]]:
    """`limited(memory_bytes)`: control plane `one` behind an Envoy with this memory limit."""
    return lambda memory_bytes: slow_server(envoy, tmp_path, hold_port=hold_port, memory_bytes=memory_bytes)


async def _send(slow: SlowServer, sent: bytes, *, handshakes: asyncio.Semaphore) -> list[int]:
    """Send a request with a certificate. Returns the status codes, and none if Envoy reset the request.

    Few requests with unknown tokens may be in flight.
    """
    context = ssl.create_default_context(cadata=SERVING_CA.certificate.decode())
    context.load_cert_chain(slow.directory / "user.pem")
    async with handshakes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", slow.serving.port, ssl=context, server_hostname="localhost"
        )
    try:
        writer.write(sent)
        return statuses(await reader.read(1 << 16))
    except ConnectionError:
        return []
    finally:
        writer.transport.abort()


async def test_envoy_without_free_memory_answers_503(limited: Any, eventually: Callable[..., Any]) -> None:
    async with limited(_EMPTY) as slow:
        slow.may_answer("small")

        async def codes() -> list[int]:
            return statuses(await slow.send("small", "Authorization: Bearer t", "Content-Length: 0"))

        await eventually(codes, lambda found: found == [503])


async def test_envoy_with_little_memory_survives_large_bodies(limited: Any, eventually: Callable[..., Any]) -> None:
    """The API server reads no body, so that Envoy keeps what it reads of each body."""
    sent = http1(f"{PATH}?large", f"Content-Length: {len(_BODY)}", method="POST") + _BODY
    handshakes = asyncio.Semaphore(_HANDSHAKES)
    async with limited(_SMALL) as slow:
        runtime = slow.directory / "runtime" / "envoy"
        (envoy,) = find_processes(runtime)
        requests = [
            asyncio.create_task(_send(slow, sent, handshakes=handshakes), name="large body") for _ in range(_REQUESTS)
        ]
        try:
            # Envoy resets requests with large buffers and refuses new ones, while others wait for the API server.
            await eventually(
                lambda: [request.result() for request in requests if request.done()],
                lambda answers: any(answer in ([], [503]) for answer in answers),
            )
            slow.may_answer("large")
            await asyncio.wait(requests)
            # aiohttp answers 413 after it has read the body.
            assert [413] in [request.result() for request in requests]
        finally:
            for request in requests:
                request.cancel()
            await asyncio.wait(requests)
        # Envoy accepts requests again, although the allocator keeps much of the freed memory.
        slow.may_answer("later")

        async def codes() -> list[int]:
            return statuses(await slow.send("later", "Authorization: Bearer t", "Content-Length: 0"))

        await eventually(codes, lambda found: found == [201])
        assert find_processes(runtime) == [envoy]
