"""Connections that clients of one address share: a fleet behind it costs no handshake for each of its members."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import aiohttp

from provider.errors import ProviderError
from provider.kubeconfig import ClusterConfig
from provider.lookup import Resolver
from provider.tls import ssl_context

__all__ = ["Connections", "Shared"]


@dataclass(slots=True, eq=False)
class Shared:
    """Connections that trust one CA, to any server, and how many clients use them."""

    connector: aiohttp.TCPConnector
    users: int = 0
    retired: bool = False


class Connections:
    """Lends connections to clients whose kubeconfigs have the same CA and no client certificate.

    Who somebody is is said in each request then, by its token, so that it does not matter who opened a connection.
    After `lifetime_seconds` new ones are made for whoever comes: until then nobody looks at a server's certificate or
    its address again. Close it with `aclose()`, after the clients.
    """

    def __init__(self, *, lifetime_seconds: float = 60.0) -> None:
        self._lifetime_seconds = lifetime_seconds
        self._present: dict[bytes | None, Shared] = {}
        self._timers: dict[Shared, asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._lock: Final = asyncio.Lock()
        self._closed = False

    def serves(self, config: ClusterConfig) -> bool:
        """Tell whether a client with this kubeconfig may share its connections."""
        return config.client_certificate is None

    async def acquire(self, config: ClusterConfig) -> Shared:
        """Lend the connections for a kubeconfig that `serves` accepted; `release` must follow.

        Raises KubeconfigError where its CA cannot be used.
        """
        async with self._lock:
            if self._closed:
                raise ProviderError("the shared connections are closed")
            shared = self._present.get(config.ca_data)
            if shared is None:
                # The CAs of the system take long to read.
                context = await asyncio.to_thread(ssl_context, config)
                shared = Shared(aiohttp.TCPConnector(ssl=context, limit=0, resolver=Resolver()))
                self._present[config.ca_data] = shared
                loop = asyncio.get_running_loop()
                self._timers[shared] = loop.call_later(self._lifetime_seconds, self._retire, config.ca_data, shared)
            shared.users += 1
            return shared

    def release(self, shared: Shared) -> None:
        """Give back what `acquire` lent."""
        shared.users -= 1
        if shared.retired and not shared.users:
            self._close(shared)

    async def aclose(self) -> None:
        """Close every connection."""
        self._closed = True
        async with self._lock:
            for ca_data, shared in tuple(self._present.items()):
                self._retire(ca_data, shared)
        if self._closing:
            await asyncio.wait(tuple(self._closing))

    def _retire(self, ca_data: bytes | None, shared: Shared) -> None:
        self._timers.pop(shared).cancel()
        del self._present[ca_data]
        shared.retired = True
        if not shared.users:
            self._close(shared)

    def _close(self, shared: Shared) -> None:
        async def close() -> None:
            await shared.connector.close()

        task = asyncio.get_running_loop().create_task(close(), name="close shared connections")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
