"""Holds connections to control planes that sleep, and carries their bytes when these are awake."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from kplane.gateway.clients import Client
from kplane.gateway.envoy.names import BACKLOG, KEY_TYPE
from kplane.gateway.errors import Declined
from kplane.gateway.routes import Upstream
from kplane.gateway.waker import Waker
from kplane.provider.aio.cancellation import end_tasks

__all__ = ["Holder"]

logger = logging.getLogger(__name__)

_HEADER_SECONDS: Final = 10.0
_CONNECT_SECONDS: Final = 10.0
_CHUNK: Final = 64 << 10
_GREETING: Final = 32 << 10
"""A client that sends more before the server has said anything does not speak TLS."""
_SIGNATURE: Final = b"\r\n\r\n\0\r\nQUIT\n"
_ADDRESSES: Final = {0x0: 0, 0x1: 12, 0x2: 36, 0x3: 216}
"""Bytes of the addresses in the header of the PROXY protocol, by their family."""
_SOURCES: Final = {0x1: 4, 0x2: 16}
"""Bytes of the address of the client, which comes first."""
_WAKES: Final = 10
"""Control planes that one client address may wake in a minute. By host name, the gateway sees no credential."""
_KEEPALIVE: Final = {socket.TCP_KEEPIDLE: 30, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 3}


class _Unreadable(Exception):
    """Envoy did not say which control plane a connection is for."""


class Holder:
    """Takes the connections that Envoy has for host names of control planes that sleep.

    It has each wait until the control plane is awake, and connects it to the API server. TLS is between client and API
    server. Later connections do not come here.
    """

    def __init__(self, waker: Waker) -> None:
        """`waker` has connections wait, as requests do, and bounds how many."""
        self._waker = waker
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator[None]:
        """Listen on a Unix socket, which only this user may connect to."""
        # What a killed controller left is in the way.
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
            if (held := await self._hold(key, reader, client=client)) is not None:
                upstream, greeting = held
                await _connect(reader, writer, upstream=upstream, greeting=greeting)
        except (Declined, OSError, TimeoutError, _Unreadable) as error:
            logger.debug("closed a connection by host name: %s", error)
        finally:
            writer.close()

    async def _hold(self, key: str, reader: asyncio.StreamReader, *, client: Client) -> tuple[Upstream, bytes] | None:
        """Return the API server, and what the client has sent, when the control plane is awake.

        None if the client has gone, or the control plane has no host name. Raises Declined if the connection must not
        wait, or has waited long enough.
        """
        greeting = bytearray()
        passage = asyncio.create_task(self._waker.passage(key, client=client), name=f"wait for {key}")
        reading = asyncio.create_task(_read(reader, into=greeting), name="see whether the client is there")
        try:
            await asyncio.wait((passage, reading), return_when=asyncio.FIRST_COMPLETED)
            if not passage.done():
                return None
            route = await passage
        finally:
            await end_tasks((passage, reading))
        return (route.upstream, bytes(greeting)) if route.host and route.upstream is not None else None


async def _read(reader: asyncio.StreamReader, *, into: bytearray) -> None:
    """Return when the client has gone, or sends more than a client would."""
    while len(into) <= _GREETING and (data := await reader.read(_CHUNK)):
        into += data


async def _read_header(reader: asyncio.StreamReader) -> tuple[str, Client]:
    """Read the header of the PROXY protocol, version 2, that Envoy sends first: which control plane, and who connects.

    Raises _Unreadable.
    """
    try:
        begin = await reader.readexactly(16)
        rest = await reader.readexactly(int.from_bytes(begin[14:]))
    except asyncio.IncompleteReadError as error:
        raise _Unreadable("the connection ended within its header") from error
    addresses = _ADDRESSES.get(begin[13] >> 4)
    if not begin.startswith(_SIGNATURE) or begin[12] >> 4 != 2 or addresses is None:
        raise _Unreadable("it does not begin with a header of the PROXY protocol")
    source = rest[: _SOURCES.get(begin[13] >> 4, 0)]
    client = Client.at(str(ipaddress.ip_address(source)) if source else "", wakes=_WAKES)
    at = addresses
    while at + 3 <= len(rest):
        kind, length = rest[at], int.from_bytes(rest[at + 1 : at + 3])
        if kind == KEY_TYPE:
            return rest[at + 3 : at + 3 + length].decode("ascii", errors="replace"), client
        at += 3 + length
    raise _Unreadable("its header names no control plane")


async def _connect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, upstream: Upstream, greeting: bytes
) -> None:
    """Carry bytes in both directions until the server is done: a client that stays would keep both connections.

    Raises OSError or TimeoutError.
    """
    async with asyncio.timeout(_CONNECT_SECONDS):
        answers, server = await asyncio.open_connection(upstream.host, upstream.port, limit=_CHUNK)
    try:
        connection = server.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        server.write(greeting)
        async with asyncio.TaskGroup() as both:
            requests = both.create_task(_carry(reader, server), name="carry requests")
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
