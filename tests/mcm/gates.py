"""TCP proxies in front of servers. Tests cut their connections and shut them."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.provider.aio.cancellation import end_tasks

_HOST = "127.0.0.1"


class Gate:
    """A proxy with its own address in front of a server. While it is shut, its clients cannot reach the server."""

    def __init__(self, server: str, *, inside: ssl.SSLContext | None) -> None:
        """With `inside`, the gate itself connects by TLS. Otherwise it forwards the TLS of its clients."""
        host, _, port = server.removeprefix("https://").rpartition(":")
        self._target = host, int(port)
        self._inside = inside
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.url = ""
        self.shut = False
        self.turned_away = 0
        """Number of connections that were refused because the gate was shut."""
        self.flowing = asyncio.Event()
        """While it is cleared, connections stay open but transfer no data."""
        self.flowing.set()

    @property
    def connections(self) -> int:
        """Number of open connections through the gate."""
        return len(self._writers) // 2

    def cut(self) -> None:
        """Break all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, ends = asyncio.current_task(), {writer}
        assert task is not None
        self._serving.add(task)
        try:
            with contextlib.suppress(OSError):  # a refused connection is closed at both ends
                there_reader, there_writer = await asyncio.open_connection(*self._target, ssl=self._inside)
                ends.add(there_writer)
                self.turned_away += self.shut
                if not self.shut and not self._closed:
                    self._writers |= ends
                    await asyncio.gather(self._forward(reader, there_writer), self._forward(there_reader, writer))
        finally:
            self._serving.remove(task)
            self._writers -= ends
            for end in ends:
                end.transport.abort()

    async def aclose(self) -> None:
        """Break all connections, including connections that are being made."""
        self._closed = True
        for _ in range(10):  # `serve` begins in one of the loop's next rounds after a connection was accepted
            await asyncio.sleep(0)
        await end_tasks(self._serving)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=1)  # after `drain` the data are sent; 0 stops TLS for good
        with contextlib.suppress(OSError):  # cut
            while data := await reader.read(65536):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        # Not closed: Python 3.11.2 cannot abort a TLS transport after that.
        writer.transport.abort()


@pytest.fixture
def gate_to() -> Callable[..., contextlib.AbstractAsyncContextManager[Gate]]:
    """`async with gate_to(server) as gate`: a proxy that can be cut and shut. TLS ends at `front`, if given."""

    @contextlib.asynccontextmanager
    async def opened(server: str, *, front: Any = None) -> AsyncIterator[Gate]:
        gate = Gate(server, inside=front and front.inside)
        listening = await asyncio.start_server(gate.serve, _HOST, 0, ssl=front and front.outside)
        gate.url = f"https://{_HOST}:{listening.sockets[0].getsockname()[1]}"
        try:
            yield gate
        finally:
            listening.close()
            await gate.aclose()

    return opened
