"""Loads an HTTPS server over many connections, with a request at a time on each, and needs little processor time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import urlsplit

from typing_extensions import override

from kplane.provider import ClusterConfig
from kplane.provider.client.tls import ssl_context

__all__ = ["Load", "Target", "Watcher", "ask", "is_complete", "watch"]

_END_OF_HEAD: Final = b"\r\n\r\n"
_END_OF_CHUNKS: Final = b"0\r\n\r\n"
_CONNECT_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Target:
    """Address and token of a control plane, direct or through the gateway."""

    host: str
    port: int
    base: str
    token: str
    tls: ssl.SSLContext

    @classmethod
    def of(cls, config: ClusterConfig) -> Target:
        """Create a target from a kubeconfig with a token."""
        url, tls = urlsplit(config.server), ssl_context(config)
        return cls(url.hostname or "", url.port or 443, url.path, config.token or "", tls)

    def request(self, path: str) -> bytes:
        """Return the bytes of a GET request."""
        lines = (
            f"GET {self.base}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            f"Authorization: Bearer {self.token}",
            "Accept: application/json",
        )
        return "\r\n".join((*lines, "", "")).encode()


@dataclass(slots=True)
class Load:
    """Results of the requests: seconds and bytes of the responses, and errors."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    bytes: int = 0


class _Asker(asyncio.Protocol):
    """Sends the next request as soon as the response to the previous request is complete."""

    def __init__(self, request: bytes, *, until: float, load: Load) -> None:
        self.done: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._request = request
        self._until = until
        self._load = load
        self._transport: asyncio.Transport | None = None
        self._sent = 0.0
        self._received = bytearray()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transport of uvloop is no subclass of asyncio.Transport.
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    @override
    def data_received(self, data: bytes) -> None:
        self._received += data
        if not is_complete(self._received):
            return
        now = time.perf_counter()
        if self._received.startswith(b"HTTP/1.1 200"):
            self._load.seconds.append(now - self._sent)
            self._load.bytes += len(self._received)
        else:
            self._load.errors.append(bytes(self._received[:200]).decode(errors="replace"))
        self._received.clear()
        if now < self._until:
            self._send()
        elif self._transport is not None:
            self._transport.close()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        if self._sent and (exc is not None or time.perf_counter() < self._until):
            self._load.errors.append(f"connection lost: {exc}")
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._sent = time.perf_counter()
        if self._transport is not None:
            self._transport.write(self._request)


def is_complete(received: bytearray) -> bool:
    """Return whether a response of HTTP/1.1 is complete."""
    head = received.find(_END_OF_HEAD)
    if head < 0:
        return False
    start = received[:head].lower()
    at = start.find(b"content-length:")
    if at < 0:
        return received.endswith(_END_OF_CHUNKS)
    length = int(start[at + 15 :].split(b"\r\n", 1)[0])
    return len(received) >= head + len(_END_OF_HEAD) + length


async def ask(target: Target, path: str, *, connections: int, seconds: float) -> Load:
    """Request a path again and again on each of `connections` connections, for `seconds`."""
    load, request, loop = Load(), target.request(path), asyncio.get_running_loop()
    until = time.perf_counter() + seconds

    async def one() -> None:
        _, asker = await loop.create_connection(
            lambda: _Asker(request, until=until, load=load), target.host, target.port, ssl=target.tls
        )
        await asker.done

    async with asyncio.timeout(seconds + _CONNECT_SECONDS):
        await asyncio.gather(*(one() for _ in range(connections)))
    return load


class Watcher(asyncio.Protocol):
    """Counts the bytes of a watch."""

    def __init__(self) -> None:
        self.received = 0
        self.lost = False

    @override
    def data_received(self, data: bytes) -> None:
        self.received += len(data)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


@contextlib.asynccontextmanager
async def watch(target: Target, path: str, *, connections: int) -> AsyncIterator[list[Watcher]]:
    """Hold watches open within the context, each on its own connection."""
    request, loop = target.request(path), asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        watchers = []
        for _ in range(connections):
            transport, watcher = await loop.create_connection(Watcher, target.host, target.port, ssl=target.tls)
            stack.callback(transport.close)
            transport.write(request)
            watchers.append(watcher)
        yield watchers
