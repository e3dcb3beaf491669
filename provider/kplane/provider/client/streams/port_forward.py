"""Forwards connections of a local port to a port of a pod."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Final, Self

from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.streams.channels import Channels
from kplane.provider.client.streams.listening import listen
from kplane.provider.errors import ProviderError, Unreachable

__all__ = ["PROTOCOLS", "PortForward"]

log: Final = logging.getLogger(__name__)

PROTOCOLS: Final = ("v4.channel.k8s.io",)
"""Protocol with a WebSocket for each connection.

Tunnelled SPDY (KEP-4006) shares a single WebSocket, but needs Kubernetes 1.31 and a SPDY stack.
"""

_DATA: Final = 0
_ERROR: Final = 1
_MAX_CONNECTIONS: Final = 64
_CHUNK_BYTES: Final = 32 * 1024
_DRAIN_SECONDS: Final = 5.0
_ACCEPT_PAUSE_SECONDS: Final = 0.5


class PortForward:
    """Listens on a local port within its context; each connection gets a WebSocket to the pod.

    `opened` opens a WebSocket to the port of the pod. At most 64 connections are open at once; others wait. A
    connection that cannot be forwarded is closed; the reason is logged as a warning and kept in `error`. Leaving the
    context closes all connections.

    The protocol has no message for the end of a direction. So after the local program has closed its side, the answer
    is forwarded until the pod has sent no data for 5 s.
    """

    def __init__(
        self,
        opened: Callable[[], contextlib.AbstractAsyncContextManager[Channels]],
        *,
        target: str,
        host: str,
        port: int,
    ) -> None:
        self.host: Final = host
        """Local host of the listening sockets."""
        self.port = port
        """Local port of the listening sockets, the same for all addresses of the host."""
        self.error = ""
        """Reason of the last failure to forward a connection; empty before the first failure."""
        self._opened = opened
        self._target = target
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listeners = await listen(self.host, self.port)
        self.port = self._listeners[0].getsockname()[1]
        for listener in self._listeners:
            self._start(self._accept(listener), name=f"accept connections for {self._target}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await end_tasks(self._tasks)
        finally:
            for listener in self._listeners:
                listener.close()

    def _start(self, work: Coroutine[object, object, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError as error:
                # For example no free file descriptor: further connections wait in the backlog.
                self._slots.release()
                self._report(f"failed to accept a connection: {error.strerror}")
                await asyncio.sleep(_ACCEPT_PAUSE_SECONDS)
                continue
            except BaseException:
                self._slots.release()
                raise
            self._start(self._forward(connection), name=f"forward a connection to {self._target}")

    async def _forward(self, connection: socket.socket) -> None:
        try:
            try:
                reader, writer = await asyncio.open_connection(sock=connection)
            except BaseException:
                connection.close()
                raise
            try:
                async with self._opened() as channels:
                    await self._transfer(reader, writer, channels)
                writer.close()
                await writer.wait_closed()
            except ProviderError as error:
                self._report(str(error))
            except OSError:
                pass  # The local program has closed the connection.
            finally:
                writer.transport.abort()
        finally:
            self._slots.release()

    def _report(self, error: str) -> None:
        self.error = error
        log.warning("failed to forward a connection to %s: %s", self._target, error)

    async def _transfer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, channels: Channels) -> None:
        """Transfer data both ways until the pod closes, or sends no data after the local program has closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as deadline:
                sending = asyncio.create_task(self._send(reader, channels, deadline), name=f"send to {self._target}")
                try:
                    await self._receive(channels, writer, deadline)
                finally:
                    await end_tasks([sending])

    async def _send(self, reader: asyncio.StreamReader, channels: Channels, deadline: asyncio.Timeout) -> None:
        with contextlib.suppress(OSError, ProviderError):  # `_receive` raises failures of the WebSocket.
            while data := await reader.read(_CHUNK_BYTES):
                await channels.send(_DATA, data)
        _postpone(deadline)

    async def _receive(self, channels: Channels, writer: asyncio.StreamWriter, deadline: asyncio.Timeout) -> None:
        # The first two bytes of each channel are the number of the port.
        header_bytes = {_DATA: 2, _ERROR: 2}
        while (message := await channels.receive()) is not None:
            channel, data = message
            header = header_bytes.get(channel, 0)
            data, header_bytes[channel] = data[header:], max(0, header - len(data))
            if channel == _ERROR and data:
                raise Unreachable(data.decode(errors="replace"), kind="connect")
            if channel == _DATA and data:
                writer.write(data)
                await writer.drain()
            if deadline.when() is not None:
                _postpone(deadline)


def _postpone(deadline: asyncio.Timeout) -> None:
    deadline.reschedule(asyncio.get_running_loop().time() + _DRAIN_SECONDS)
