"""A line to an API server that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from urllib.parse import urlsplit


class Line:
    """Carries bytes to and fro, as long as it is not cut."""

    def __init__(self, server: str) -> None:
        address = urlsplit(server)
        self._to = address.hostname or "", address.port or 443
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        # It never listens: what comes is refused, and nobody else gets the port while the line is cut.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._held.bind(("127.0.0.1", 0))
        self.port: int = self._held.getsockname()[1]

    async def lay(self) -> None:
        """Let through."""
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port, reuse_port=True)

    def end(self) -> None:
        self.cut()
        self._held.close()

    def cut(self) -> None:
        """End what is let through, and refuse what comes."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        finally:
            for each in (writer, back):
                self._writers.discard(each)
                each.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
