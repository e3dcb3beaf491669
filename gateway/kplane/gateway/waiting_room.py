"""Waiting room: accepts connections for API servers that are not ready, and closes each after half a second.

Envoy then retries the request (`envoy/readiness.py`). Envoy connects with TLS, and the waiting room never answers the
handshake. So no part of a request arrives here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from typing_extensions import override

from kplane.gateway.envoy.names import BACKLOG

__all__ = ["waiting_room"]

_SECONDS: Final = 0.5


@contextlib.asynccontextmanager
async def waiting_room(path: Path) -> AsyncIterator[None]:
    """Listen on the Unix socket `path` while the context is open. Only this user may connect to it."""
    # A killed controller leaves its socket behind.
    path.unlink(missing_ok=True)
    loop, guests = asyncio.get_running_loop(), set[asyncio.BaseTransport]()
    server = await loop.create_unix_server(lambda: _Guest(guests), str(path), backlog=BACKLOG)
    try:
        path.chmod(0o600)
        yield
    finally:
        server.close()
        for transport in tuple(guests):
            transport.close()


class _Guest(asyncio.Protocol):
    """Connection of Envoy."""

    def __init__(self, guests: set[asyncio.BaseTransport]) -> None:
        self._guests = guests
        self._transport: asyncio.BaseTransport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._guests.add(transport)
        asyncio.get_running_loop().call_later(_SECONDS, transport.close)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._guests.discard(self._transport)
