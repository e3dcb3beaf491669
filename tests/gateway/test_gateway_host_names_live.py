"""Control planes by host name through a real Envoy. TLS connections are between client and API server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway.routes import Route, Sleep, Upstream
from kplane.pki.primitives import create_authority, issue_client, issue_serving
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from tests.mcm.control_planes import manifest

from .attacker import exchange, http1
from .conftest import Gateway

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

MASTERS = ("system:masters",)
_AUTHORITY = create_authority("control planes")


@dataclass
class Backend:
    """TLS server in place of an API server. Sends its name to each client, and echoes the lines that it gets.

    Only checks of readiness ask for HTTP in TLS. They get 200.
    """

    name: str
    port: int = 0
    connections: int = 0

    @property
    def host(self) -> str:
        return f"{self.name}.example.org"

    @property
    def route(self) -> Route:
        upstream = Upstream.behind(f"https://127.0.0.1:{self.port}")
        return Route(key=f"uid-{self.name}", cluster_path=self.name, upstream=upstream, host=self.host)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if writer.get_extra_info("ssl_object").selected_alpn_protocol() is not None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
            writer.close()
            return
        self.connections += 1
        writer.write(f"{self.name}\n".encode())
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(line)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def _backends(directory: Path, *names: str) -> AsyncIterator[list[Backend]]:
    async with contextlib.AsyncExitStack() as stack:
        backends = []
        for name in names:
            backend = Backend(name)
            pair = issue_serving(_AUTHORITY, common_name=name, hosts=[backend.host])
            file = directory / f"{name}.pem"
            file.write_bytes(pair.certificate + pair.key)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(file)
            context.set_alpn_protocols(["http/1.1"])
            server = await asyncio.start_server(backend.answer, "127.0.0.1", 0, ssl=context)
            stack.callback(server.close)
            backend.port = server.sockets[0].getsockname()[1]
            backends.append(backend)
        yield backends


def _asleep(route: Route) -> Route:
    return replace(route, asleep=Sleep(name=route.cluster_path, since=datetime.now(UTC)))


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def line(self) -> str:
        return (await self.reader.readline()).decode().strip()

    async def repeats(self, text: str) -> bool:
        self.writer.write(f"{text}\n".encode())
        return await self.line() == text


Connect = Callable[[str], Awaitable[Connection]]


@pytest.fixture
async def connect(gateway: Gateway) -> AsyncIterator[Connect]:
    """Open a connection by host name. Raises OSError or ssl.SSLError if it is closed, or another server answers."""
    connections = []

    async def open_connection(host: str) -> Connection:
        context = ssl.create_default_context(cadata=_AUTHORITY.certificate.decode())
        context.check_hostname = not host.isupper()
        address = "127.0.0.1", gateway.serving.port
        connections.append(Connection(*await asyncio.open_connection(*address, ssl=context, server_hostname=host)))
        return connections[-1]

    yield open_connection
    for connection in connections:
        connection.writer.transport.abort()
        with contextlib.suppress(OSError):
            await connection.writer.wait_closed()


async def test_host_name_leads_to_its_control_plane(gateway: Gateway, connect: Connect, tmp_path: Path) -> None:
    async with _backends(tmp_path, "red", "blue") as (red, blue):
        assert await gateway.serve(red.route, blue.route, gateway.route("one")) == {}
        for backend in (red, blue):
            connection = await connect(backend.host)
            assert await connection.line() == backend.name
            assert await connection.repeats("hello")
        assert await (await connect("RED.EXAMPLE.ORG")).line() == "red"
        assert (red.connections, blue.connections) == (2, 1)
        # Unknown names, and names of Envoy clusters.
        for name in ("green.example.org", "a.red.example.org", "none", "uid-one", "uid-one/front-proxy", "authorizer"):
            with pytest.raises((OSError, ssl.SSLError)):
                await connect(name)
        async with Client(gateway.user("one", "admin", groups=MASTERS)) as client:
            assert (await client.list(NAMESPACES)).items
        # Control planes with a host name are not served by path.
        answer = await exchange(gateway.serving.port, http1("/clusters/red/control-plane/api"), ca=gateway.ca)
        assert answer.startswith(b"HTTP/1.1 401")
    assert gateway.wakes == []


async def test_connection_waits_until_control_plane_is_awake(
    gateway: Gateway, connect: Connect, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    async with _backends(tmp_path, "red", "blue") as (red, blue):
        assert await gateway.serve(_asleep(red.route), blue.route) == {}
        tasks = [asyncio.create_task(connect(red.host)) for _ in range(10)]
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 10)
        assert gateway.wakes == ["uid-red"]
        assert await (await connect(blue.host)).line() == "blue"
        assert red.connections == 0
        gateway.plane.know([red.route, blue.route])
        connections = await asyncio.gather(*tasks)
        for connection in connections:
            assert await connection.line() == "red"
        assert gateway.waker.waiting == 0
        # Envoy gets the route. Connections that had to wait stay open.
        assert await gateway.serve(red.route, blue.route) == {}
        direct = await connect(red.host)
        assert await direct.line() == "red"
        for connection in (*connections, direct):
            assert await connection.repeats("still here")
        # Envoy counts a connection as a request. By this counter, the operator detects used control planes.
        counters = await gateway.plane.numbers()
        stat = "cluster.uid-red/connections.upstream_rq"
        assert counters[f"{stat}_active"] == counters[f"{stat}_total"] == 11
        # The control plane sleeps again: only new connections wait.
        assert await gateway.serve(_asleep(red.route), blue.route) == {}
        task = asyncio.create_task(connect(red.host))
        await eventually(lambda: gateway.wakes, lambda wakes: wakes == ["uid-red", "uid-red"])
        assert await direct.repeats("still here")
        await gateway.serve(red.route, blue.route)
        assert await (await task).line() == "red"


async def test_connection_to_unknown_host_name_wakes_no_control_plane(
    gateway: Gateway, connect: Connect, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    async with _backends(tmp_path, "red", "blue") as (red, blue):
        await gateway.serve(_asleep(red.route), blue.route)
        for name in ("green.example.org", "a.red.example.org", "red.example.org.evil"):
            with pytest.raises((OSError, ssl.SSLError)):
                await connect(name)
        assert gateway.wakes == []
        # A client that disconnects stops waiting.
        request = asyncio.create_task(connect(red.host))
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 1)
        request.cancel()
        await eventually(lambda: gateway.waker.waiting, lambda waiting: waiting == 0)
        # Connections to a control plane without an API server are closed at once.
        await gateway.serve(blue.route, replace(red.route, upstream=None))
        with pytest.raises((OSError, ssl.SSLError)):
            await connect(red.host)


def _user(gateway: Gateway, name: str) -> ClusterConfig:
    """Return settings of an administrator with a client certificate, who trusts the CA of the control plane."""
    tenant = gateway.tenants[name]
    pair = issue_client(tenant.authorities.client, user="admin", groups=MASTERS)
    return ClusterConfig(
        server=f"https://{gateway.host}",
        tls_server_name=f"{name}.example.org",
        ca_data=tenant.authorities.serving.certificate,
        client_certificate=pair.certificate,
        client_key=pair.key,
    )


async def test_host_name_changes_interrupt_no_watch_or_request(
    gateway: Gateway, connect: Connect, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    route_one, route_two = gateway.host_route("one"), gateway.route("two")
    namespace = f"watched-{gateway.serving.port}"
    created_names: list[str] = []
    seen: dict[str, list[str]] = {"host": [], "path": []}

    async def watch(client: Client, into: list[str]) -> None:
        async with client.watch(CONFIG_MAPS, resource_version=None, namespace=namespace) as events:
            async for event in events:
                into += [event.object["metadata"].get("name", "")]

    async with (
        Client(_user(gateway, "one")) as by_host,
        Client(gateway.user("two", "admin", groups=MASTERS)) as by_path,
        _backends(tmp_path, *(f"t-{number}" for number in range(20))) as backends,
    ):
        # No route has a host name yet.
        await by_path.create(NAMESPACES, manifest("v1", "Namespace", namespace))
        watches = [asyncio.create_task(watch(by_path, seen["path"]))]
        assert await gateway.serve(route_one, route_two) == {}
        await by_host.create(NAMESPACES, manifest("v1", "Namespace", namespace))
        watches.append(asyncio.create_task(watch(by_host, seen["host"])))
        stop = asyncio.Event()

        async def load() -> None:
            while not stop.is_set():
                name = f"made-{len(created_names)}"
                created_names.append(name)
                for client in (by_host, by_path):
                    await client.create(CONFIG_MAPS, manifest("v1", "ConfigMap", name, namespace=namespace))

        loader = asyncio.create_task(load())
        for number in range(3):
            routes = [backend.route for backend in backends]
            mixed_routes = [_asleep(route) if index % 2 == number % 2 else route for index, route in enumerate(routes)]
            assert await gateway.serve(route_one, route_two, *mixed_routes) == {}
            assert await gateway.serve(route_one, route_two, *routes) == {}
            for backend in backends:
                assert await (await connect(backend.host)).line() == backend.name
            # All other routes are removed. The host name of control plane `one` and its domain stay.
            assert await gateway.serve(route_one, route_two) == {}
        stop.set()
        await loader
        assert len(created_names) > 5
        for found in seen.values():
            await eventually(
                lambda found=found: [name for name in found if name in created_names], lambda got: got == created_names
            )
        # The last host name is removed. The listener drops its part for host names, and the watch by path stays.
        assert await gateway.serve(route_two) == {}
        await by_path.create(CONFIG_MAPS, manifest("v1", "ConfigMap", "last", namespace=namespace))
        await eventually(lambda: seen["path"], lambda found: found[-1] == "last")
        assert not watches[0].done()
        # Both updates changed the listener in place, so no connection ended with a former listener.
        assert gateway.plane._administration is not None
        pattern = "^listener_manager\\.listener_(modified|in_place_updated)$"
        changes = await gateway.plane._administration.numbers(pattern)
        assert changes == {"listener_manager.listener_modified": 2, "listener_manager.listener_in_place_updated": 2}
        for task in watches:
            task.cancel()
        await asyncio.wait(watches)


async def test_websocket_watch_passes_through_host_name(gateway: Gateway, tmp_path: Path) -> None:
    """A watch over WebSocket stands for exec, which needs a kubelet."""
    await gateway.serve(gateway.host_route("one"))
    config, certificate = _user(gateway, "one"), tmp_path / "client.pem"
    assert config.client_certificate is not None
    assert config.client_key is not None
    assert config.ca_data is not None
    certificate.write_bytes(config.client_certificate + config.client_key)
    upgrade = (
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        "Origin: https://localhost",
    )
    sent = http1("/api/v1/namespaces?watch=true&timeoutSeconds=1", *upgrade)
    sent = sent.replace(b"Connection: close", b"Connection: Upgrade")
    host = "one.example.org"
    answer = await exchange(gateway.serving.port, sent, ca=config.ca_data, certificate=certificate, host=host)
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols")
    assert b'"name":"kube-system"' in answer


@pytest.mark.slow
async def test_kubectl_works_with_certificate_by_host_name(gateway: Gateway, kubectl: Any, tmp_path: Path) -> None:
    await gateway.serve(gateway.host_route("one"), gateway.host_route("two"))
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(_user(gateway, "one").to_kubeconfig()))
    user_info = json.loads(await kubectl(kubeconfig, "auth", "whoami", "-o", "json"))["status"]["userInfo"]
    assert user_info["username"] == "admin"
    assert "system:masters" in user_info["groups"]
    assert "namespace/kube-system" in await kubectl(kubeconfig, "get", "namespaces", "-o", "name")
    # The name of another control plane leads to its API server, whose certificate is from another CA.
    with pytest.raises(Exception, match="certificate signed by unknown authority"):
        await kubectl(kubeconfig, "get", "namespaces", "--tls-server-name=two.example.org")
