"""A TCP proxy before an API server. While it is closed, connections break and new connections are refused."""

from __future__ import annotations

import asyncio
from typing import Final, Self
from urllib.parse import urlsplit

__all__ = ["Gate"]

_HOST: Final = "127.0.0.1"
_CHUNK_BYTES: Final = 65536


class Gate:
    """Forwards the bytes of each connection to the API server at `url`; an async context manager.

    The port stays the same after `close` and `open`. To a client, a closed gate is an API server that is down.
    """

    def __init__(self, url: str) -> None:
        target = urlsplit(url)
        self._target: Final = (target.hostname or _HOST, target.port or 443)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """URL of the API server through the gate."""
        return f"https://{_HOST}:{self._port}"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Let connections pass."""
        self._server = await asyncio.start_server(self._accept, _HOST, self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Break all connections, and refuse new connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        connections = tuple(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._forward(reader, writer), name="connection through a gate")
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            writers.append(far_writer)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_copy(reader, far_writer))
                tasks.create_task(_copy(far_reader, writer))
        except (OSError, ExceptionGroup):
            pass  # a side has closed the connection, so the other side is closed below
        finally:
            for open_writer in writers:
                open_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(_CHUNK_BYTES):
        writer.write(part)
        await writer.drain()
    writer.close()
