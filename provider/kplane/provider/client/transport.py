"""Authenticated HTTPS exchanges with one API server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from kplane.provider.access.config import ClusterConfig
from kplane.provider.access.credentials import Credentials
from kplane.provider.client.connections import Connections, Peer, Upgrade
from kplane.provider.client.server_warnings import WarningLog
from kplane.provider.client.tls import beginning_of_certificate
from kplane.provider.client.wire import NOT_YET_VALID_CODE, translated
from kplane.provider.errors import ProviderError, Unreachable

if TYPE_CHECKING:
    import aiohttp

__all__ = ["HttpRequest", "Transport"]

_TIME: Final = "%Y-%m-%dT%H:%MZ"
_MESSAGE_BYTES: Final = 4 << 20
"""Maximum size of a message of a WebSocket; kubelets send 32 KiB at most."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. `path`, which is relative to the path of the server, and `query` are encoded."""

    method: str
    path: str
    query: str = ""
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    before_sending: Callable[[], object] | None = None
    """Called right before the body is sent. If it raises, the request is not sent, and fails as Unreachable."""
    protocols: tuple[str, ...] = ()
    """Subprotocols of the requested WebSocket; see `Transport.websocket`."""
    received: Callable[[bytes], bytes] | None = None
    """Changes received data: the body of an answer, or each event of a watch."""
    kind: str = ""
    """Name of the kind, such as `apps/v1/Deployment`, for warnings about the answer."""
    key: str = ""
    """Namespace and name of the object; empty for collections."""

    @override
    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def within(self, seconds: float) -> HttpRequest:
        """Return the same request with a deadline for the API server (its parameter `timeout`)."""
        timeout = f"timeout={max(1, int(seconds * 1000))}ms"
        return replace(self, query=f"{self.query}&{timeout}" if self.query else timeout)


class _Exchange:
    """A request in flight, until its answer is read."""

    def __init__(self) -> None:
        self.closing = asyncio.timeout(None)
        self.response: aiohttp.ClientResponse | None = None
        self.upgrade: Upgrade | None = None
        self.peers: list[Peer] = []

    def end(self) -> None:
        """Close the connection, and wake the waiting caller."""
        if self.response is not None:
            _drop(self.response)
        elif self.closing.when() is None:
            self.closing.reschedule(asyncio.get_running_loop().time())


class Transport:
    """Sends requests to the server of a `ClusterConfig`; makes connections on first use, in the running loop."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        connect_timeout_seconds: float,
        user_agent: str,
        connections: Connections | None = None,
    ) -> None:
        """Use the shared `connections`, or connections of its own by default."""
        import aiohttp

        self._config = config
        self.user_agent: Final = user_agent
        """User-Agent of the program."""
        self._owned = connections is None
        self._connections = Connections() if connections is None else connections
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_seconds)
        self._credentials = Credentials(config, plugin_runs=self._connections.plugin_runs)
        self._shown: ClusterConfig | None = None
        self._peer: Peer | None = None
        self._exchanges: set[_Exchange] = set()
        self._closed = False

    @property
    def config(self) -> ClusterConfig:
        """The configuration of the next request."""
        return self._config

    @property
    def warnings(self) -> WarningLog:
        """The log that clients with the same connections share."""
        return self._connections.warnings

    @contextlib.asynccontextmanager
    async def exchange(self, request: HttpRequest) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield the head of the answer. At the end, free the connection, or close it if unread.

        Only connecting has a deadline. Raises Unreachable, or KubeconfigError for unusable credentials.
        """
        async with self._exchanging(request) as exchange:
            assert exchange.response is not None  # noqa: S101 - it has begun
            yield exchange.response

    def websocket(self, request: HttpRequest) -> contextlib.AbstractAsyncContextManager[Upgrade]:
        """Request a WebSocket with one of the protocols of a request, and close the connection at the end.

        Raises as `exchange`. If the server refuses, the context yields the refusal.
        """
        return self._upgrading(request)

    @contextlib.asynccontextmanager
    async def _upgrading(self, request: HttpRequest) -> AsyncIterator[Upgrade]:
        async with self._exchanging(request) as exchange:
            assert exchange.upgrade is not None  # noqa: S101 - it has begun
            yield exchange.upgrade

    @contextlib.asynccontextmanager
    async def _exchanging(self, request: HttpRequest) -> AsyncIterator[_Exchange]:
        self._require_open()
        exchange = _Exchange()
        self._exchanges.add(exchange)
        try:
            has_ca = self._config.ca_data is not None
            with translated(server=self._config.server, asked=str(request), has_ca=has_ca):
                response = exchange.response = await self._begin(request, exchange)
                try:
                    yield exchange
                finally:
                    _drop(response)
                    if exchange.upgrade is not None and exchange.upgrade.websocket is not None:
                        # The connection is aborted, so closing does not wait for the server.
                        await exchange.upgrade.websocket.close()
        finally:
            self._exchanges.discard(exchange)
            for peer in exchange.peers:
                self._connections.leave(peer)

    async def update(self, config: ClusterConfig) -> None:
        """Use renewed credentials from now on; running exchanges finish with the old ones."""
        old, self._config = self._credentials, config
        self._credentials = Credentials(config, plugin_runs=self._connections.plugin_runs)
        await old.aclose()

    async def aclose(self) -> None:
        """Close every connection; waiting callers get Unreachable."""
        self._closed = True
        for exchange in tuple(self._exchanges):
            exchange.end()
        peer, self._peer = self._peer, None
        if peer is not None:
            self._connections.leave(peer)
            await self._connections.ended(peer)
        if self._owned:
            await self._connections.aclose()
        await self._credentials.aclose()
        # Transports of connections that were closed unread finish in the next iterations of the event loop.
        for _ in range(3):
            await asyncio.sleep(0)

    def _require_open(self) -> None:
        if self._closed:
            raise ProviderError(f"the client of {self._config.server} is closed")

    async def _begin(self, request: HttpRequest, exchange: _Exchange) -> aiohttp.ClientResponse:
        try:
            async with exchange.closing:
                response = await self._send(request, exchange)
        except TimeoutError:
            if exchange.closing.expired():
                raise self._ended(request) from None
            raise
        if self._closed:
            _drop(response)
            raise self._ended(request)
        return response

    def _ended(self, request: HttpRequest) -> Unreachable:
        return Unreachable(f"{request}: the client of {self._config.server} was closed meanwhile", kind="connect")

    async def _send(self, request: HttpRequest, exchange: _Exchange) -> aiohttp.ClientResponse:
        credentials = self._credentials
        shown = await credentials.current()
        response = await self._send_once(request, exchange, shown=shown)
        if response.status == HTTPStatus.UNAUTHORIZED:
            try:
                renewed = await credentials.refused(shown)
            except BaseException:
                _drop(response)
                raise
            if renewed is not shown:
                _drop(response)
                return await self._send_once(request, exchange, shown=renewed)
        return response

    async def _send_once(
        self, request: HttpRequest, exchange: _Exchange, *, shown: ClusterConfig
    ) -> aiohttp.ClientResponse:
        import aiohttp
        from multidict import CIMultiDict
        from yarl import URL

        peer = self._join(exchange, shown=shown)
        headers = CIMultiDict({"Accept": request.accept, "User-Agent": self.user_agent})
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if shown.token is not None:
            headers["Authorization"] = f"Bearer {shown.token}"
        if shown.impersonation is not None:
            headers.extend(shown.impersonation.headers())
        query = f"?{request.query}" if request.query else ""
        url = URL(f"{shown.server}{request.path}{query}", encoded=True)
        try:
            if request.protocols:
                exchange.upgrade = await self._connections.upgrade(
                    peer, url, protocols=request.protocols, headers=headers, message_bytes=_MESSAGE_BYTES
                )
                return exchange.upgrade.response
            return await self._connections.request(
                peer,
                request.method,
                url,
                timeout=self._timeout,
                headers=headers,
                data=_payload(request),
            )
        except aiohttp.ClientConnectorCertificateError as error:
            certificate_error = error.certificate_error
            if getattr(certificate_error, "verify_code", 0) != NOT_YET_VALID_CODE:
                raise
            begins = await beginning_of_certificate(shown, timeout_seconds=self._timeout.sock_connect)
            if begins is None:
                raise
            # Minutes only: with seconds, each probe would have a new message, and write a status.
            raise Unreachable(
                f"{request}: {shown.server}: certificate is valid from {begins:{_TIME}} only, and the clock of this"
                f" machine says {datetime.now(UTC):{_TIME}}; compare the clocks of both machines",
                kind="tls",
                reason="CertificateInvalid",
            ) from error

    def _join(self, exchange: _Exchange, *, shown: ClusterConfig) -> Peer:
        """Add an exchange to the users of the connections. The client is a user too, and so keeps them open."""
        self._require_open()
        peer = self._peer
        if peer is None or shown is not self._shown:
            previous, peer = peer, self._connections.join(shown)
            self._peer, self._shown = peer, shown
            if previous is not None:
                self._connections.leave(previous)
        peer.users += 1
        exchange.peers.append(peer)
        return peer


def _payload(request: HttpRequest) -> bytes | aiohttp.BytesPayload | None:
    if request.body is None or request.before_sending is None:
        return request.body
    from kplane.provider.client.http import CheckedBody

    return CheckedBody(request.body, check=request.before_sending)


def _drop(response: aiohttp.ClientResponse) -> None:
    """Free the connection of a response if its body was read, else close the connection."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        # A TLS transport that is closed politely stays open for as long as the server likes.
        connection.transport.abort()
    response.close()
