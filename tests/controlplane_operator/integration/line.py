"""TCP proxy to an API server that a test can interrupt."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit


class Line:
    """Forwards bytes in both directions until a test cuts the connections."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._to = address.hostname or "", address.port or 443
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._is_cut = False
        # This socket reserves the port and never listens: clients get connection refused while the proxy is cut.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]

    async def lay(self) -> None:
        """Accept and forward connections."""
        self._is_cut = False
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port, reuse_port=True)

    def end(self) -> None:
        self.cut()
        self._held.close()

    def cut(self) -> None:
        """Abort open connections and refuse new connections."""
        assert self._server is not None
        self._is_cut = True
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._to)
        if self._is_cut:
            # The line was cut after it accepted this connection, which would outlast the cut.
            for stream in (writer, upstream_writer):
                stream.transport.abort()
            return
        self._writers |= {writer, upstream_writer}
        try:
            await asyncio.gather(self._copy(reader, upstream_writer), self._copy(upstream_reader, writer))
        finally:
            for stream in (writer, upstream_writer):
                self._writers.discard(stream)
                stream.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
