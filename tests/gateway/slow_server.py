"""An API server whose responses a test releases, behind a gateway with a real Envoy."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from kplane.gateway.data_plane import DataPlane
from kplane.gateway.envoy.bootstrap import MEMORY_BYTES
from kplane.gateway.envoy.listener import Serving
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.routes import KeyPair, Route
from kplane.gateway.waker import Waker
from kplane.pki.primitives import issue_client, issue_serving
from kplane.workloads import ProcessRuntime

from .attacker import exchange, http1
from .fleet import CLIENT_CA, SERVING_CA, route

__all__ = ["PATH", "SlowServer", "slow_server"]

_SECONDS = 240.0
PATH = "/clusters/one/control-plane/api/v1/namespaces/default/configmaps"


@dataclass
class SlowServer:
    """Serves control plane `one`. Users have the certificate of jane or an arbitrary token."""

    plane: DataPlane
    waker: Waker
    serving: Serving
    route: Route
    directory: Path
    answers: dict[str, asyncio.Event] = field(default_factory=dict)
    """Events by the query of a received request. A set event releases the response."""
    lost: set[str] = field(default_factory=set)
    """Queries of requests whose connection is aborted instead of a response."""

    async def answer(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/readyz":
            return web.Response()
        query = request.raw_path.partition("?")[2]
        await self.answers.setdefault(query, asyncio.Event()).wait()
        if query in self.lost:
            assert request.transport is not None
            request.transport.abort()
        await request.read()
        return web.Response(status=201, text="answered")

    def may_answer(self, query: str) -> None:
        self.answers.setdefault(query, asyncio.Event()).set()

    async def serve(self, served: Route) -> None:
        assert await self.plane.apply([served], serving=self.serving) == {}

    async def send(
        self, query: str, *headers: str, method: str = "POST", body: bytes = b"", certificate: bool = False
    ) -> bytes:
        sent = http1(f"{PATH}?{query}", *headers, method=method, body=body)
        return await self.exchange(sent, certificate=certificate)

    async def exchange(
        self, sent: bytes | AsyncIterator[bytes], *, protocol: str = "http/1.1", certificate: bool = False
    ) -> bytes:
        user_file = self.directory / "user.pem" if certificate else None
        options: Any = {"certificate": user_file, "protocol": protocol, "seconds": _SECONDS}
        return await exchange(self.serving.port, sent, ca=SERVING_CA.certificate, **options)


@contextlib.asynccontextmanager
async def slow_server(
    envoy: Path, directory: Path, *, hold_port: Callable[[], int], memory_bytes: int = MEMORY_BYTES
) -> AsyncIterator[SlowServer]:
    pair = issue_serving(SERVING_CA, common_name="x", hosts=["127.0.0.1", "localhost"])
    (directory / "server.pem").write_bytes(pair.certificate + pair.key)
    user = issue_client(CLIENT_CA, user="jane")
    (directory / "user.pem").write_bytes(user.certificate + user.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(directory / "server.pem")
    gateway_directory = directory / "gateway"
    gateway_directory.mkdir(mode=0o700)

    async def request(asked: Route, at: datetime) -> None:
        """Ignore the wake-up request. The test wakes the control plane."""

    waker, port = Waker(request), hold_port()
    async with ProcessRuntime(directory / "runtime", programs=[]) as runtime:
        validate = EnvoyValidator(envoy, directory=gateway_directory)
        plane = DataPlane(
            gateway_directory,
            validate=validate,
            program=envoy,
            runtime=runtime,
            waker=waker,
            workers=1,
            memory_bytes=memory_bytes,
        )
        serving = Serving(host="127.0.0.1", port=hold_port(), certificate=KeyPair(pair.certificate, pair.key))
        server = SlowServer(plane, waker, serving, route("one", port=port), directory)
        runner = web.ServerRunner(web.Server(server.answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context, reuse_address=True).start()
        async with plane.running():
            try:
                await server.serve(server.route)
                yield server
            finally:
                await plane.stop()
                await runner.cleanup()
