"""Clients honour `tls-server-name` of a kubeconfig: they connect to an address and verify a different name."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes import config as official_config
from kubernetes.client import CoreV1Api, VersionApi
from kubernetes.stream import stream

from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Client, ClusterConfig, Unreachable

_HOST = "acme.localhost"
_VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3",
    "gitCommit": "0",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "go1.25",
    "compiler": "gc",
    "platform": "linux/amd64",
}


class Named:
    """A server on 127.0.0.1 with a certificate for a different name only."""

    def __init__(self, port: int, ca: bytes) -> None:
        self.asked: list[str | None] = []
        """Name that each connection asked for in TLS."""
        self._address = {"server": f"https://127.0.0.1:{port}", "ca": ca, "token": "secret"}

    def kubeconfig(self, name: str | None = _HOST) -> bytes:
        return render_kubeconfig(**self._address, tls_server_name=name)  # type: ignore[arg-type]


@pytest.fixture
async def named(tmp_path: Path) -> AsyncIterator[Named]:
    authority = create_authority("acme")
    pair = issue_serving(authority, common_name="kube-apiserver", hosts=[_HOST])
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    context.sni_callback = lambda _connection, name, _context: named_server.asked.append(name)

    async def version(_: web.Request) -> web.Response:
        return web.json_response(_VERSION)

    async def attach(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x01hello")
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/version", version)
    app.router.add_get("/version/", version)
    app.router.add_get("/api/v1/namespaces/default/pods/web/exec", attach)
    server = TestServer(app)
    await server.start_server(ssl=context)
    assert server.port is not None
    named_server = Named(server.port, authority.certificate)
    try:
        yield named_server
    finally:
        await server.close()


async def test_provider_client_connects_to_address_and_verifies_name(named: Named) -> None:
    async with Client(ClusterConfig.from_kubeconfig(named.kubeconfig()), field_manager="kplane") as client:
        assert (await client.request("GET", "/version"))["gitVersion"] == "v1.36.3"
    assert named.asked == [_HOST]
    async with Client(ClusterConfig.from_kubeconfig(named.kubeconfig(None)), field_manager="kplane") as client:
        with pytest.raises(Unreachable):
            await client.request("GET", "/version")


async def test_official_client_connects_to_address_and_verifies_name(named: Named) -> None:
    @contextlib.contextmanager
    def api() -> Iterator[Any]:
        client = official_config.new_client_from_config_dict(yaml.safe_load(named.kubeconfig()))
        try:
            yield client
        finally:
            client.rest_client.pool_manager.clear()  # its `close` leaves connections open

    def version() -> str:
        with api() as client:
            return str(VersionApi(client).get_code(_request_timeout=10).git_version)

    def executed() -> str:
        with api() as client:
            connect = CoreV1Api(client).connect_get_namespaced_pod_exec
            socket = stream(connect, "web", "default", command=["true"], stdout=True, _preload_content=False)
            try:
                socket.run_forever(timeout=10)
                return str(socket.read_all())
            finally:
                socket.sock.shutdown()  # `socket.close` leaves the connection open if the server has closed it

    assert await asyncio.to_thread(version) == "v1.36.3"
    assert await asyncio.to_thread(executed) == "hello"
    assert named.asked == [_HOST] * 2


@pytest.mark.integration
async def test_kubectl_connects_to_address_and_verifies_name(
    named: Named, kubectl: Callable[..., Any], tmp_path: Path
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(named.kubeconfig())
    assert "v1.36.3" in await kubectl(file, "get", "--raw", "/version")
    assert named.asked == [_HOST]
