"""Ways to servers that can be cut and shut."""

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
    """A way to a server, with an address of its own. While it is shut, the server is away for those who come by it."""

    def __init__(self, server: str, *, inside: ssl.SSLContext | None) -> None:
        """TLS to the server is that of who comes, or else by `inside`."""
        host, _, port = server.removeprefix("https://").rpartition(":")
        self._target = host, int(port)
        self._inside = inside
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.url = ""
        self.shut = False
        self.turned_away = 0
        """How many came while it was shut."""
        self.flowing = asyncio.Event()
        """Cleared: connections are there, and nothing comes through until it is set again."""
        self.flowing.set()

    @property
    def connections(self) -> int:
        """How many lead through it now."""
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
            with contextlib.suppress(OSError):  # where the server does not take it, this end is closed as well
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
        """Break all connections, those too that are being made."""
        self._closed = True
        for _ in range(10):  # what was accepted begins to be served in the loop's next rounds
            await asyncio.sleep(0)
        await end_tasks(self._serving)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=1)  # drained is gone; 0 stops TLS for good
        with contextlib.suppress(OSError):  # cut
            while data := await reader.read(65536):
                await self.flowing.wait()
                writer.write(data)
                await writer.drain()
        # Not closed: Python 3.11.2 cannot abort a TLS transport after that.
        writer.transport.abort()


@pytest.fixture
def gate_to() -> Callable[..., contextlib.AbstractAsyncContextManager[Gate]]:
    """`async with gate_to(server) as gate`: a way to it that can be cut and shut. TLS ends at `front`, if given."""

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
