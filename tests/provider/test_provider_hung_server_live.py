"""A kube-apiserver behind a connection that falls silent: old connections stay open, new connections are accepted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from urllib.parse import urlsplit

import pytest

from kplane.provider import Cluster

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def silenced(server):
    """Yield the port of a line to an API server, and an event: bytes pass until the event is cleared."""
    address, passing = urlsplit(server), asyncio.Event()
    passing.set()

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await passing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()

    async def carry(reader, writer):
        there, back = await asyncio.open_connection(address.hostname, address.port)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    listening = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1], passing
    finally:
        passing.set()
        listening.close()


async def test_cluster_of_silent_server_is_unreachable_within_45_seconds(client, eventually):
    async with silenced(client.config.server) as (port, passing):
        cluster = Cluster("a", config=client.config.with_server(f"https://127.0.0.1:{port}"))
        try:
            await cluster.cache.list("v1/ConfigMap")
            await cluster.cache.list("v1/Secret")
            assert cluster.health.state == "Ready"
            passing.clear()
            began = time.monotonic()
            await eventually(lambda: cluster.health.state, lambda state: state == "Unreachable", timeout=60)
            assert time.monotonic() - began <= 46
            passing.set()
            await eventually(lambda: cluster.health.state, lambda state: state == "Ready", timeout=60)
        finally:
            await cluster.aclose()
