"""Connections of clients that stop before their request is complete. Envoy closes them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable

import pytest

from .attacker import exchange, statuses
from .fleet import SERVING_CA
from .slow_server import PATH, SlowServer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_LIMIT_SECONDS = 12.0


def _client_hello() -> bytes:
    """Return the first message of a TLS handshake."""
    sent = ssl.MemoryBIO()
    connection = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return sent.read()


async def _until_closed(port: int, sent: bytes) -> bytes:
    """Send bytes without TLS, and return what Envoy sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        return await reader.read(-1)
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


async def test_silent_handshake_and_incomplete_headers_end(slow: SlowServer) -> None:
    port, hello = slow.serving.port, _client_hello()

    def request(sent: bytes) -> Awaitable[bytes]:
        return exchange(port, sent, ca=SERVING_CA.certificate, to_the_end=True)

    async with asyncio.timeout(_LIMIT_SECONDS):
        silent, half_hello, whole_hello, half_line, half_headers = await asyncio.gather(
            _until_closed(port, b""),
            _until_closed(port, hello[: len(hello) // 2]),
            _until_closed(port, hello),
            request(f"GET {PATH}"[:-10].encode()),
            request(f"GET {PATH} HTTP/1.1\r\nHost: gateway\r\nX-Half: ".encode()),
        )
    assert (silent, half_hello) == (b"", b"")
    # Envoy sends its part of the handshake, and waits for that of the client.
    assert whole_hello
    for answer in (half_line, half_headers):
        assert statuses(answer) in ([], [408])
    # Other clients are unaffected.
    slow.may_answer("later")
    assert statuses(await slow.send("later", "Authorization: Bearer t", "Content-Length: 0")) == [201]
