"""Test server that accepts connections and never responds."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class SilentServer:
    """Listening socket: the kernel accepts connections, and no program reads them."""

    listening: socket.socket

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.listening.getsockname()[1]}"

    @property
    def reached(self) -> bool:
        """Whether a client has connected."""
        polled = select.poll()
        polled.register(self.listening, select.POLLIN)
        return bool(polled.poll(0))


@contextlib.contextmanager
def silent_server() -> Iterator[SilentServer]:
    """Listen on 127.0.0.1 until the block ends.

    An asyncio server is unsuitable: closing it leaves a connection open that it is accepting at that moment.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        yield SilentServer(listening)
