"""WebSockets of kubelets: each binary message begins with the number of its channel (`channel.k8s.io`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from kplane.provider.client.transport import HttpRequest, Transport
from kplane.provider.client.wire import refusal_of, translated
from kplane.provider.errors import Unreachable

__all__ = ["Channels", "open_channels"]


class Channels:
    """Sends and receives the messages of an open WebSocket. Raises Unreachable if the connection fails."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse, *, server: str, asked: str) -> None:
        self._websocket = websocket
        self._server = server
        self._asked = asked

    @property
    def protocol(self) -> str:
        """The subprotocol that the server chose."""
        return self._websocket.protocol or ""

    async def send(self, channel: int, data: bytes) -> None:
        """Send a message, and wait while the server takes no more."""
        with self._translated():
            await self._websocket.send_bytes(bytes((channel,)) + data)

    async def receive(self) -> tuple[int, bytes] | None:
        """Return the channel and the content of the next message; None if the server has closed the WebSocket."""
        with self._translated():
            message = await self._websocket.receive()
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            return message.data[0], message.data[1:]
        if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
            if self._websocket.close_code == aiohttp.WSCloseCode.ABNORMAL_CLOSURE:
                raise Unreachable(f"{self._asked}: {self._server} closed the connection", kind="connect")
            return None
        reason = f": {message.data}" if message.type is aiohttp.WSMsgType.ERROR else ""
        raise Unreachable(
            f"{self._asked}: {self._server} does not speak {self.protocol or 'channel.k8s.io'}{reason}", kind="protocol"
        )

    def _translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(server=self._server, asked=self._asked)


@contextlib.asynccontextmanager
async def open_channels(
    transport: Transport, request: HttpRequest, *, timeout_seconds: float
) -> AsyncIterator[Channels]:
    """Open a WebSocket with one of the protocols of a request; leaving closes its connection.

    Raises ApiError if the server refuses, and Unreachable if it does not answer in time or chooses no protocol.
    """
    server, asked = transport.config.server, str(request)
    stack = contextlib.AsyncExitStack()
    try:
        with translated(server=server, asked=asked):
            async with asyncio.timeout(timeout_seconds):
                response, websocket, refusal = await stack.enter_async_context(transport.websocket(request))
        if websocket is None and response.status >= 300:
            raise refusal_of(response, refusal, server=server, asked=asked)
        if websocket is None or websocket.protocol not in request.protocols:
            protocols = " or ".join(request.protocols)
            raise Unreachable(f"{asked}: {server} does not offer {protocols}; update its API server", kind="protocol")
        yield Channels(websocket, server=server, asked=asked)
    finally:
        # Not `async with`: the transport would report an OSError or ValueError of the caller as its own failure.
        await stack.aclose()
