"""Test server with TLS, as API servers have."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer

from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import ClusterConfig


@contextlib.asynccontextmanager
async def serve_over_tls(app: web.Application, directory: Path) -> AsyncIterator[ClusterConfig]:
    """Serve an application on 127.0.0.1. Yield the configuration of its clients, with bearer token `secret`."""
    authority = create_authority("acme")
    pair = issue_serving(authority, common_name="server", hosts=["127.0.0.1"])
    (directory / "server.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    server = TestServer(app)
    await server.start_server(ssl=context)
    try:
        yield ClusterConfig(server=f"https://127.0.0.1:{server.port}", ca_data=authority.certificate, token="secret")
    finally:
        await server.close()
