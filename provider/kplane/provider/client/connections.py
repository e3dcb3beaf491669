"""Connections and TLS contexts that many clients share."""

from __future__ import annotations

import asyncio
import functools
import ssl
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from kplane.provider.access.config import ClusterConfig
from kplane.provider.aio.turns import Turns
from kplane.provider.client.server_warnings import WarningLog
from kplane.provider.client.tls import fingerprint, ssl_context
from kplane.provider.errors import ProviderError

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.client_proto import ResponseHandler
    from yarl import URL

__all__ = ["Connections", "Peer", "Upgrade"]

_ATTEMPTS_PER_SERVER: Final = 16
_IDLE_SECONDS: Final = 15.0
"""Maximum time that a connection of a client is idle, if connections do not linger after their client."""
_REFUSAL_BYTES: Final = 64 * 1024
_PLUGINS_AT_ONCE: Final = 8
_PLUGIN_PATIENCE_SECONDS: Final = 5.0


class _Key(NamedTuple):
    """Key of a peer: clients with equal keys share connections."""

    host: str | None
    port: int | None
    tls_server_name: str | None
    proxy: str | None
    tls: bytes


class _Context:
    """A TLS context, and the number of its peers."""

    def __init__(self) -> None:
        self.made: ssl.SSLContext | None = None
        self.made_at = 0.0
        self.making: asyncio.Future[ssl.SSLContext] | None = None
        self.users = 0


class Peer:
    """A server as seen by one identity: its users and open connections."""

    def __init__(self, key: _Key, config: ClusterConfig, context: _Context) -> None:
        self.key: Final = key
        self.config: Final = config
        self.context: Final = context
        self.proxy: URL | None = None
        self.proxy_headers: dict[str, str] | None = None
        if key.proxy is not None:
            import aiohttp
            from yarl import URL

            proxy = URL(key.proxy)
            # The credentials go into a header, because errors show the URL of the proxy.
            self.proxy = proxy.with_user(None)
            if proxy.user:
                credentials = aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
                self.proxy_headers = {"Proxy-Authorization": credentials}
        self.users = 0
        self.open: set[ResponseHandler] = set()
        self.lingering: asyncio.TimerHandle | None = None


class Upgrade(NamedTuple):
    """The answer to a request for a WebSocket: the WebSocket, or the beginning of the body if the server refused."""

    response: aiohttp.ClientResponse
    websocket: aiohttp.ClientWebSocketResponse | None = None
    refusal: bytes = b""


class _NotUpgraded(Exception):
    """The server refused a WebSocket."""


_peer: Final[ContextVar[Peer | None]] = ContextVar("provider_peer", default=None)
"""The peer for which the current task needs a connection."""

_upgrades: Final[ContextVar[list[Upgrade] | None]] = ContextVar("provider_upgrades", default=None)
"""Collects the answers to the current task's requests for a WebSocket."""


async def _keep_answer(response: aiohttp.ClientResponse) -> None:
    """Keep the answer to a request for a WebSocket: `ws_connect` drops the body with the reason of a refusal."""
    answers = _upgrades.get()
    if answers is None:
        return
    if response.status == HTTPStatus.SWITCHING_PROTOCOLS:
        answers.append(Upgrade(response))
        return
    body = b""
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) >= _REFUSAL_BYTES:
            break
    answers.append(Upgrade(response, refusal=body[:_REFUSAL_BYTES]))
    raise _NotUpgraded


class Connections:
    """Shares a pool of connections and TLS contexts among the clients of a process.

    Clients share a TLS context if CA, client certificate and key are equal, and a connection if host, port, server name
    and proxy are equal too. So a certificate is never used for another identity; tokens are sent with each request.
    After `lifetime_seconds`, new connections get a new context, and check the server's certificate and address again. A
    connection closes after `linger_seconds` without a request, and `linger_seconds` after the last client of its server
    was closed. With 0, closing the client awaits the end of its connections.

    At most `attempts` connections are made at once, and 16 for each server. An attempt longer than 0.25 s counts only
    for its server. Likewise at most eight credential plugins run at once, where a run longer than 5 s does not count.
    The object belongs to the event loop of its first use. Close it with `aclose()`, after the clients.
    """

    def __init__(self, *, lifetime_seconds: float = 60.0, linger_seconds: float = 15.0, attempts: int = 32) -> None:
        self.plugin_runs: Final = Turns(_PLUGINS_AT_ONCE, per_key=1, patience_seconds=_PLUGIN_PATIENCE_SECONDS)
        self.requests: Final[Counter[tuple[str, str]]] = Counter()
        """Requests by method and status code; the code is `<error>` if there was no answer, as in client-go."""
        self.warnings: Final = WarningLog()
        """Logs the warnings of all servers."""
        self._lifetime_seconds = lifetime_seconds
        self._linger_seconds = linger_seconds
        # aiohttp takes 0.2 s to import: do this here, and not in the event loop during a request.
        from kplane.provider.client.http import Connector

        self._connector: Callable[[], Connector] = functools.partial(
            Connector,
            Turns(attempts, per_key=_ATTEMPTS_PER_SERVER),
            peer=_peer,
            idle_seconds=linger_seconds or _IDLE_SECONDS,
        )
        self._contexts: dict[bytes, _Context] = {}
        self._peers: dict[_Key, Peer] = {}
        self._making: set[asyncio.Future[ssl.SSLContext]] = set()
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    def join(self, config: ClusterConfig) -> Peer:
        """Add a user of the connections to a server; `leave` must follow."""
        if self._closed:
            raise ProviderError("the shared connections are closed")
        url = urlsplit(config.server)
        key = _Key(url.hostname, url.port, config.tls_server_name, config.proxy, fingerprint(config))
        peer = self._peers.get(key)
        if peer is None:
            context = self._contexts.setdefault(key.tls, _Context())
            context.users += 1
            peer = self._peers[key] = Peer(key, config, context)
        elif peer.lingering is not None:
            peer.lingering.cancel()
            peer.lingering = None
        peer.users += 1
        return peer

    def leave(self, peer: Peer) -> None:
        """Undo one `join`; after the last one the connections close."""
        peer.users -= 1
        if peer.users or self._peers.get(peer.key) is not peer:
            return
        if self._linger_seconds > 0:
            peer.lingering = asyncio.get_running_loop().call_later(self._linger_seconds, self._forget, peer)
        else:
            self._forget(peer)

    async def ended(self, peer: Peer) -> None:
        """Wait until the connections of a peer are closed; return at once if the peer has users."""
        if self._peers.get(peer.key) is not peer:
            await _wait_closed(peer.open)

    async def request(
        self, peer: Peer, method: str, url: Any, *, timeout: aiohttp.ClientTimeout, **options: Any
    ) -> aiohttp.ClientResponse:
        """Send a request and return the head of the answer.

        `options` are aiohttp's; `timeout.sock_connect` bounds the making of a connection. Raises KubeconfigError if CA
        or certificate cannot be used, and aiohttp's errors.
        """
        session, context = await self._session_for(peer)
        token = _peer.set(peer)
        code = "<error>"
        try:
            response = await session.request(
                method,
                url,
                timeout=timeout,
                allow_redirects=False,
                ssl=context,
                server_hostname=peer.key.tls_server_name,
                proxy=peer.proxy,
                proxy_headers=peer.proxy_headers,
                **options,
            )
            code = str(response.status)
            return response
        finally:
            self.requests[method, code] += 1
            _peer.reset(token)

    async def upgrade(
        self, peer: Peer, url: Any, *, protocols: Sequence[str], headers: Mapping[str, str], message_bytes: int
    ) -> Upgrade:
        """Ask for a WebSocket with one of `protocols`; a message has at most `message_bytes`.

        The caller bounds the time. Raises as `request`, except for a refusal, which is in the result.
        """
        session, context = await self._session_for(peer)
        token = _peer.set(peer)
        answers: list[Upgrade] = []
        collected = _upgrades.set(answers)
        try:
            websocket = await session.ws_connect(
                url,
                protocols=protocols,
                headers=headers,
                ssl=context,
                server_hostname=peer.key.tls_server_name,
                proxy=peer.proxy,
                proxy_headers=peer.proxy_headers,
                max_msg_size=message_bytes,
            )
            return answers[-1]._replace(websocket=websocket)
        except _NotUpgraded:
            return answers[-1]
        finally:
            self.requests["GET", str(answers[-1].response.status) if answers else "<error>"] += 1
            _upgrades.reset(collected)
            _peer.reset(token)

    async def aclose(self) -> None:
        """Close every connection, including connections in use."""
        self._closed = True
        closing: set[ResponseHandler] = set()
        for peer in tuple(self._peers.values()):
            closing |= peer.open
            self._forget(peer)
        if self._session is not None:
            await self._session.close()
        await _wait_closed(closing)
        if self._making:
            await asyncio.wait(tuple(self._making))

    async def _session_for(self, peer: Peer) -> tuple[aiohttp.ClientSession, ssl.SSLContext]:
        context = await self._context(peer)
        if self._closed:
            raise ProviderError("the shared connections are closed")
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                cookie_jar=aiohttp.DummyCookieJar(),
                raise_for_status=_keep_answer,
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        return self._session, context

    async def _context(self, peer: Peer) -> ssl.SSLContext:
        context = peer.context
        if context.made is not None and time.monotonic() - context.made_at <= self._lifetime_seconds:
            return context.made
        if context.making is None:
            # Reading the CAs of the system is slow, and a thread cannot be cancelled. So all callers share its result.
            context.making = asyncio.get_running_loop().run_in_executor(None, ssl_context, peer.config)
            self._making.add(context.making)
            context.making.add_done_callback(functools.partial(self._made, context))
        return await asyncio.shield(context.making)

    def _made(self, context: _Context, future: asyncio.Future[ssl.SSLContext]) -> None:
        self._making.discard(future)
        context.making = None
        if not future.cancelled() and future.exception() is None:
            context.made, context.made_at = future.result(), time.monotonic()

    def _forget(self, peer: Peer) -> None:
        if peer.lingering is not None:
            peer.lingering.cancel()
            peer.lingering = None
        del self._peers[peer.key]
        peer.context.users -= 1
        if not peer.context.users:
            del self._contexts[peer.key.tls]
        for connection in tuple(peer.open):
            # Abort: after a graceful close, TLS waits for the server, which may never answer.
            connection.abort()


async def _wait_closed(connections: set[ResponseHandler]) -> None:
    waiting = [closed for connection in tuple(connections) if (closed := connection.closed) is not None]
    if waiting:
        await asyncio.wait(waiting)
