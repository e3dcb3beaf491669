"""Authenticated HTTPS exchanges with one API server, over connections that are all closed in the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

import aiohttp
from typing_extensions import override
from yarl import URL

from provider.connections import Connections, Shared
from provider.errors import KubeconfigError, ProviderError
from provider.kubeconfig import ClusterConfig
from provider.lookup import Resolver
from provider.tls import ssl_context
from provider.wire import translated

__all__ = ["Request", "Transport"]

_TOKEN_CACHED_SECONDS: Final = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `path` is encoded and below the server's own path; `query` is encoded as well."""

    method: str
    path: str
    query: str = ""
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"

    @override
    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(slots=True, eq=False)
class _Session:
    http: aiohttp.ClientSession
    users: int = 0
    responses: set[aiohttp.ClientResponse] = field(default_factory=set)
    retired: bool = False
    shared: Shared | None = None


class Transport:
    """Sends requests to the server of a `ClusterConfig`; its connections are made on first use, in the running loop."""

    def __init__(
        self, config: ClusterConfig, *, connect_timeout_seconds: float, connections: Connections | None = None
    ) -> None:
        """`connections` are used in the place of own ones wherever the kubeconfig allows it."""
        self._config = config
        self._connections = connections
        self._connect_timeout_seconds = connect_timeout_seconds
        self._session: _Session | None = None
        self._sessions: set[_Session] = set()
        self._lock = asyncio.Lock()
        self._closed = False
        self._threads: set[asyncio.Future[Any]] = set()
        self._token: str | None = None
        self._token_read_at = 0.0

    @property
    def config(self) -> ClusterConfig:
        """What the next request uses."""
        return self._config

    @contextlib.asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send the request and give the answer's head; on exit its connection is free again, or closed if unread.

        Sets no deadline but the one for connecting. Raises Unreachable, or KubeconfigError for unusable credentials.
        """
        session = await self._acquire()
        try:
            with translated(server=self._config.server, asked=str(request)):
                response = await self._send(session.http, request)
                session.responses.add(response)
                try:
                    yield response
                finally:
                    session.responses.discard(response)
                    _drop(response)
        finally:
            session.users -= 1
            if session.retired and not session.users:
                await self._discard(session)

    async def update(self, config: ClusterConfig) -> None:
        """Use renewed credentials from now on; exchanges under way end on the old ones."""
        async with self._lock:
            old, self._config, self._token = self._config, config, None
            same_tls = (old.ca_data, old.client_certificate, old.client_key) == (
                config.ca_data,
                config.client_certificate,
                config.client_key,
            )
            retired = self._session
            if same_tls or retired is None:
                return
            self._session = None
            retired.retired = True
            if not retired.users:
                await self._discard(retired)

    async def aclose(self) -> None:
        """Close every connection; whoever waits for an answer gets Unreachable."""
        self._closed = True
        async with self._lock:
            for session in tuple(self._sessions):
                await self._discard(session)
        if self._threads:
            await asyncio.wait(tuple(self._threads))

    async def _in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Call what would block; it cannot be cancelled, so `aclose` waits for it."""
        future = asyncio.get_running_loop().run_in_executor(None, function, *args)
        self._threads.add(future)
        future.add_done_callback(self._thread_ended)
        return await asyncio.shield(future)

    def _thread_ended(self, future: asyncio.Future[Any]) -> None:
        self._threads.discard(future)
        if not future.cancelled():
            # Where its caller was cancelled, nobody else looks at a failure.
            future.exception()

    async def _discard(self, session: _Session) -> None:
        self._sessions.discard(session)
        # The session alone would leave whoever reads a response waiting for ever.
        for response in session.responses:
            _drop(response)
        await session.http.close()
        shared, session.shared = session.shared, None
        if shared is not None and self._connections is not None:
            self._connections.release(shared)
        # Transports of connections that were closed unread finish in the loop's next rounds.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _acquire(self) -> _Session:
        async with self._lock:
            if self._closed:
                raise ProviderError(f"the client of {self._config.server} is closed")
            if self._session is None:
                self._session = await self._open()
                self._sessions.add(self._session)
            self._session.users += 1
            return self._session

    async def _open(self) -> _Session:
        shared: Shared | None = None
        if self._connections is not None and self._connections.serves(self._config):
            shared = await self._connections.acquire(self._config)
            connector = shared.connector
        else:
            context = await self._in_thread(ssl_context, self._config)
            connector = aiohttp.TCPConnector(ssl=context, limit=0, resolver=Resolver())
        http = aiohttp.ClientSession(
            connector=connector,
            connector_owner=shared is None,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._connect_timeout_seconds),
            trust_env=False,
        )
        return _Session(http, shared=shared)

    async def _send(self, http: aiohttp.ClientSession, request: Request) -> aiohttp.ClientResponse:
        token = await self._read_token()
        response = await self._send_once(http, request, token=token)
        if response.status == HTTPStatus.UNAUTHORIZED and self._config.token_file is not None:
            self._token = None
            renewed = await self._read_token()
            if renewed != token:
                response.close()
                return await self._send_once(http, request, token=renewed)
        return response

    async def _send_once(
        self, http: aiohttp.ClientSession, request: Request, *, token: str | None
    ) -> aiohttp.ClientResponse:
        if http.closed:
            raise ProviderError(f"the client of {self._config.server} is closed")
        headers = {"Accept": request.accept, "User-Agent": "kplane"}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        query = f"?{request.query}" if request.query else ""
        return await http.request(
            request.method,
            URL(f"{self._config.server}{request.path}{query}", encoded=True),
            headers=headers,
            data=request.body,
            allow_redirects=False,
            server_hostname=self._config.tls_server_name,
        )

    async def _read_token(self) -> str | None:
        path = self._config.token_file
        if path is None:
            return self._config.token
        if self._token is None or time.monotonic() - self._token_read_at > _TOKEN_CACHED_SECONDS:
            try:
                token = (await self._in_thread(path.read_text, "ascii")).strip()
            except (OSError, UnicodeDecodeError) as error:
                raise KubeconfigError(f"cannot read the token file {path}: {error}") from error
            if not token or not token.isprintable():
                raise KubeconfigError(f"the token file {path} holds no token")
            self._token, self._token_read_at = token, time.monotonic()
        return self._token


def _drop(response: aiohttp.ClientResponse) -> None:
    """Give the response's connection back where it was read to its end, else end it at once."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        # A TLS transport that is closed politely stays open for as long as the server likes.
        connection.transport.abort()
    response.close()
