"""Extensions of aiohttp for the client. Import this module only with the first client: aiohttp is slow to load."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

import aiohttp
from typing_extensions import override

from kplane.provider.aio.turns import Turns
from kplane.provider.client.lookup import Resolver

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.client_proto import ResponseHandler
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

    from kplane.provider.client.connections import Peer

__all__ = ["CheckedBody", "Connector"]

_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
"""Socket options that let the kernel detect a lost peer within a minute, also under a quiet log. WebSocket pings would
end streams with a slow reader too, because a kubelet does not answer pings while it waits for the container."""


class Connector(aiohttp.TCPConnector):
    """Bounds the number of connections that are made at once, records the peer of each, and detects lost peers.

    aiohttp's pool keeps connections with different TLS contexts, server names or proxies apart (its ConnectionKey).
    """

    def __init__(self, attempts: Turns, *, peer: ContextVar[Peer | None], idle_seconds: float) -> None:
        """`attempts` bounds connection attempts; `peer` is the server for which the current task connects."""
        super().__init__(limit=0, resolver=Resolver(), keepalive_timeout=idle_seconds)
        self._attempts = attempts
        self._peer = peer

    @override
    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        peer = self._peer.get()
        # The time-out for connecting begins with the turn of this attempt.
        async with self._attempts.turn((req.url.host, req.url.port)), asyncio.timeout(timeout.sock_connect):
            made = await super()._create_connection(req, traces, timeout)
        _keep_alive(made)
        if peer is not None and (closed := made.closed) is not None:
            peer.open.add(made)

            def ended(future: asyncio.Future[None]) -> None:
                peer.open.discard(made)
                # The user of the connection gets the failure itself; this read avoids a warning of asyncio.
                if not future.cancelled():
                    future.exception()

            closed.add_done_callback(ended)
        return made


def _keep_alive(connection: ResponseHandler) -> None:
    transport = connection.transport
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is not None:
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            if hasattr(socket, option):
                connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class CheckedBody(aiohttp.BytesPayload):
    """A body that runs a check right before it is sent."""

    def __init__(self, body: bytes, *, check: Callable[[], object]) -> None:
        super().__init__(body)
        self._check = check

    @override
    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._check()
        await super().write_with_length(writer, content_length)
