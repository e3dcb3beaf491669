"""A server that answers as an API server does before pods, over TLS."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from kplane.controlplane_operator.pki.primitives import create_authority, issue_serving
from kplane.provider import Client, ClusterConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(
    routes: dict[str, Handler], directory: Path, *, timeout_seconds: float = 10.0
) -> AsyncIterator[Client]:
    """Serve GET of these paths, and give a client."""
    authority = create_authority("acme")
    pair = issue_serving(authority, common_name="server", hosts=["127.0.0.1"])
    (directory / "server.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    app = web.Application()
    for path, handler in routes.items():
        app.router.add_get(path, handler)
    server = TestServer(app)
    await server.start_server(ssl=context)
    config = ClusterConfig(server=f"https://127.0.0.1:{server.port}", ca_data=authority.certificate, token="secret")
    try:
        async with Client(config, timeout_seconds=timeout_seconds) as client:
            yield client
    finally:
        await server.close()


def refusal(code: int, reason: str) -> web.Response:
    """Return a Status that refuses."""
    return web.json_response({"kind": "Status", "code": code, "reason": reason, "message": "no"}, status=code)
