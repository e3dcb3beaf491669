"""What the client adds to aiohttp. It loads aiohttp, so it is imported when a client is made, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

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


class Connector(aiohttp.TCPConnector):
    """Bounds how many connections are made at once, and records whose they are.

    aiohttp's pool keeps connections with different TLS contexts, server names or proxies apart (its ConnectionKey).
    """

    def __init__(self, attempts: Turns, *, peer: ContextVar[Peer | None], idle_seconds: float) -> None:
        """`attempts` are the turns of those who connect; `peer` is whom the current task asks for a connection."""
        super().__init__(limit=0, resolver=Resolver(), keepalive_timeout=idle_seconds)
        self._attempts = attempts
        self._peer = peer

    @override
    async def _create_connection(
        self, req: ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        peer = self._peer.get()
        # The time for connecting begins when it is this one's turn.
        async with self._attempts.turn((req.url.host, req.url.port)), asyncio.timeout(timeout.sock_connect):
            made = await super()._create_connection(req, traces, timeout)
        if peer is not None and (closed := made.closed) is not None:
            peer.open.add(made)

            def ended(future: asyncio.Future[None]) -> None:
                peer.open.discard(made)
                # The user of the connection got the failure.
                if not future.cancelled():
                    future.exception()

            closed.add_done_callback(ended)
        return made


class CheckedBody(aiohttp.BytesPayload):
    """A body with a last check before it is sent."""

    def __init__(self, body: bytes, *, check: Callable[[], object]) -> None:
        super().__init__(body)
        self._check = check

    @override
    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        self._check()
        await super().write_with_length(writer, content_length)
