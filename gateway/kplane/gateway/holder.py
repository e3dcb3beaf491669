"""Holder: holds connections to control planes that sleep or are not ready, and forwards them afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from kplane.gateway.clients import Client
from kplane.gateway.envoy.names import BACKLOG, KEY_TYPE
from kplane.gateway.errors import Declined
from kplane.gateway.routes import Route, Upstream
from kplane.gateway.waker import Waker
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["Holder"]

logger = logging.getLogger(__name__)

_HEADER_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_CHUNK: Final = 64 << 10
_GREETING: Final = 32 << 10
"""Maximum bytes from a client before the first bytes of the server. A client that sends more does not speak TLS."""
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_ADDRESSES: Final = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}
"""Length of both addresses in the PROXY protocol header in bytes, by address family."""
_SOURCES: Final = {0x1: 4, 0x2: 16}
"""Length of the client address in bytes, by address family. The client address comes first."""
_WAKES: Final = 10
"""Maximum number of control planes that a client address may wake in a minute by host name, without a visible
credential.
"""
_READY_SECONDS: Final = 25.0
"""Maximum seconds that a connection waits for an API server that is not ready. Many clients give up after 30 s."""
_EACH_UNREADY: Final = 500
_ALL_UNREADY: Final = 1000
"""Maximum numbers of connections that wait for readiness: of a control plane, and of all control planes together."""
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


class _Unreadable(Exception):
    """The PROXY protocol header of a connection names no control plane, or is invalid."""


class Holder:
    """Accepts Envoy's connections to host names of control planes that sleep, or whose API server is not ready.

    Each connection waits until the API server is ready, and is then forwarded to it. Client and API
    server speak TLS end to end. Envoy connects later connections to the API server directly.
    """

    def __init__(self, waker: Waker, *, is_ready: Callable[[Upstream], Awaitable[bool]]) -> None:
        """Create a holder without connections.

        `waker` holds connections in the same way as requests, and limits their number. `is_ready` returns whether an
        API server is ready. If it is not, the answer takes a moment, since the holder asks again at once.
        """
        self._waker = waker
        self._is_ready = is_ready
        self._unready: Counter[str] = Counter()
        """Number of connections that wait for readiness, by key of the control plane."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def unready(self) -> int:
        """Number of connections that wait until an API server is ready."""
        return self._unready.total()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen on the Unix socket `path` while the context is open. Only this user may connect to it."""
        # A killed controller leaves its socket behind.
        path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._begin, str(path), limit=_CHUNK, backlog=BACKLOG)
        try:
            path.chmod(0o600)
            yield
        finally:
            server.close()
            await end_tasks(self._tasks)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._take(reader, writer), name="hold a connection")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_HEADER_SECONDS):
                key, client = await _read_header(reader)
            if (target := await self._hold(key, reader, client=client)) is not None:
                upstream, greeting = target
                await _connect(reader, writer, upstream=upstream, greeting=greeting)
        except (Declined, OSError, TimeoutError, _Unreadable) as error:
            logger.debug("closed a connection by host name: %s", error)
        finally:
            writer.close()

    async def _hold(self, key: str, reader: asyncio.StreamReader, *, client: Client) -> tuple[Upstream, bytes] | None:
        """Wait until the API server is ready. Returns its API server, and the bytes that the client has sent.

        Returns None if the client disconnects or sends too much, or if the control plane has no host name. Raises
        Declined if too many connections wait, or if the wait takes too long.
        """
        greeting = bytearray()
        passage = asyncio.create_task(self._passage(key, client=client), name=f"wait for {key}")
        reading = asyncio.create_task(_read(reader, into=greeting), name="see whether the client is there")
        try:
            await asyncio.wait((passage, reading), return_when=asyncio.FIRST_COMPLETED)
            if not passage.done():
                return None
            route = await passage
        finally:
            await end_tasks((passage, reading))
        return (route.upstream, bytes(greeting)) if route.host and route.upstream is not None else None

    async def _passage(self, key: str, *, client: Client) -> Route:
        """Wait until the control plane is awake, and its API server ready. Returns the route.

        Raises Declined if too many connections wait, and Declined or TimeoutError if the wait takes too long.
        """
        route = await self._waker.passage(key, client=client)
        with self._place(key):
            async with asyncio.timeout(_READY_SECONDS):
                while route.host and route.upstream is not None and not await self._is_ready(route.upstream):
                    # The control plane may have moved or fallen asleep meanwhile.
                    route = await self._waker.passage(key, client=client)
        return route

    @contextlib.contextmanager
    def _place(self, key: str) -> Iterator[None]:
        if self._unready[key] >= _EACH_UNREADY or self.unready >= _ALL_UNREADY:
            raise Declined(429, "too many connections wait for this control plane")
        self._unready[key] += 1
        try:
            yield
        finally:
            self._unready[key] -= 1
            if not self._unready[key]:
                del self._unready[key]


async def _read(reader: asyncio.StreamReader, *, into: bytearray) -> None:
    """Buffer bytes until the client disconnects, or has sent more than `_GREETING` bytes."""
    while len(into) <= _GREETING and (data := await reader.read(_CHUNK)):
        into += data


async def _read_header(reader: asyncio.StreamReader) -> tuple[str, Client]:
    """Read the PROXY protocol header (version 2) that Envoy sends first.

    Returns the key of the control plane, and the client. Raises _Unreadable if the header is invalid or names no
    control plane.
    """
    try:
        head = await reader.readexactly(16)
        rest = await reader.readexactly(int.from_bytes(head[14:]))
    except asyncio.IncompleteReadError as error:
        raise _Unreadable("the connection ended within its header") from error
    addresses = _ADDRESSES.get(head[13] >> 4)
    if not head.startswith(_SIGNATURE) or head[12] >> 4 != 2 or addresses is None:
        raise _Unreadable("it does not begin with a header of the PROXY protocol")
    source = rest[: _SOURCES.get(head[13] >> 4, 0)]
    client = Client.at(str(ipaddress.ip_address(source)) if source else "", wakes=_WAKES)
    offset = addresses
    while offset + 3 <= len(rest):
        kind, length = rest[offset], int.from_bytes(rest[offset + 1 : offset + 3])
        if kind == KEY_TYPE:
            return rest[offset + 3 : offset + 3 + length].decode("ascii", errors="replace"), client
        offset += 3 + length
    raise _Unreadable("its header names no control plane")


async def _connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upstream: Upstream, greeting: bytes
) -> None:
    """Forward bytes in both directions until the server closes the connection.

    The server decides, since a client that never closes would keep both connections open. `greeting` contains bytes
    that the client has sent already. Raises OSError or TimeoutError if a connection fails.
    """
    async with asyncio.timeout(_CONNECT_SECONDS):
        answers, server = await asyncio.open_connection(upstream.host, upstream.port, limit=_CHUNK)
    try:
        connection = server.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        server.write(greeting)
        async with asyncio.TaskGroup() as group:
            requests = group.create_task(_carry(reader, server), name="carry requests")
            await _carry(answers, writer)
            requests.cancel()
    except* OSError as lost:
        raise lost.exceptions[0] from None
    finally:
        server.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_CHUNK):
        writer.write(data)
        await writer.drain()
    if not writer.is_closing():
        writer.write_eof()
