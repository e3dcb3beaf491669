"""Port forwarding: addresses that need a forward, the pod behind a connection, and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
import yaml
from typing_extensions import override

from kplane.cli import port_forward
from kplane.cli.errors import CliError
from kplane.cli.kubeconfigs import Management
from kplane.cli.port_forward import forwarded, forwarding, is_inside
from kplane.cli.tenants import reached
from tests.provider import kubelet as fake
from tests.provider.kubelet import Kubelet

INSIDE = "https://kube-apiserver.kplane-cp-acme.svc:6443/path"
HOST = "kube-apiserver.kplane-cp-acme.svc"


def document(server: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": "kplane-acme", "cluster": {"server": server}}],
        "users": [{"name": "acme", "user": {"token": "t"}}],
        "contexts": [{"name": "acme", "context": {"cluster": "kplane-acme", "user": "acme"}}],
        "current-context": "acme",
    }


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://kube-apiserver.kplane-cp-acme.svc:6443", True),
        ("https://kplane-gateway.kplane-system.svc/clusters/acme/control-plane", True),
        ("https://acme.example.org:6443", False),
        ("https://svc.example.org/clusters/acme/control-plane", False),
        ("https://127.0.0.1:6443", False),
        ("https://[::1]:6443", False),
    ],
)
def test_only_service_addresses_are_inside(server: str, expected: bool) -> None:
    assert is_inside(document(server)) is expected


@pytest_asyncio.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """Management cluster with a Service whose pod echoes its input."""
    async with fake.serving(tmp_path) as server:
        server.serve = fake.echo
        server.service = {"selector": {"app": "kube-apiserver"}, "ports": [{"port": 6443, "targetPort": "web"}]}
        server.pods = [fake.pod("api-0")]
        yield server


@pytest.fixture
def management(kubelet: Kubelet, tmp_path: Path) -> Management:
    path = tmp_path / "kubeconfig"
    cluster = {"server": kubelet.config.server, "certificate-authority": str(tmp_path / "ca.pem")}
    assert kubelet.config.ca_data is not None
    (tmp_path / "ca.pem").write_bytes(kubelet.config.ca_data)
    config = document(kubelet.config.server) | {"clusters": [{"name": "kplane-acme", "cluster": cluster}]}
    path.write_text(yaml.safe_dump(config))
    return Management(kubeconfig=str(path))


def port_of(found: dict[str, Any]) -> int:
    [cluster] = found["clusters"]
    address = urlsplit(cluster["cluster"]["server"])
    assert (address.scheme, address.hostname, address.path) == ("https", "127.0.0.1", "/path")
    assert cluster["cluster"]["tls-server-name"] == HOST
    port: int | None = address.port
    assert port is not None
    return port


async def ask(port: int, content: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(content)
        return await reader.readexactly(len(content))
    finally:
        writer.transport.abort()


async def test_forwarding_connects_to_target_port_of_pod(kubelet: Kubelet, management: Management) -> None:
    async with forwarding(document(INSIDE), to=management) as config:
        assert await ask(port_of(config), b"hello") == b"hello"
    [request] = kubelet.asked
    assert (request.match_info["namespace"], request.match_info["pod"]) == ("kplane-cp-acme", "api-0")
    assert request.query["ports"] == "8080"
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port_of(config))


async def test_new_connection_goes_to_new_pod_after_first_pod_is_gone(kubelet: Kubelet, management: Management) -> None:
    async with forwarding(document(INSIDE), to=management) as config:
        await ask(port_of(config), b"hello")
        kubelet.pods = [fake.pod("api-1")]
        await ask(port_of(config), b"hello")
    assert [request.match_info["pod"] for request in kubelet.asked] == ["api-0", "api-1"]


async def test_forwarded_keeps_port_open_for_blocking_caller(kubelet: Kubelet, management: Management) -> None:
    def use() -> tuple[bytes, int]:
        with forwarded(document(INSIDE), to=management) as config:
            port = port_of(config)
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(b"hello")
                return connection.recv(5), port

    answer, port = await asyncio.to_thread(use)
    assert answer == b"hello"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forward a port")]
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_control_plane_is_reached_through_forwarded_port(
    kubelet: Kubelet, management: Management, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(management.kubeconfig))

    async def ready(_: str, **__: Any) -> str:
        return json.dumps(document(INSIDE))

    control_planes: Any = SimpleNamespace(ensure_awake=ready, restored_kubeconfig=ready)
    async with reached(control_planes, "acme", internal=False, context=None) as client:
        address = urlsplit(client.config.server)
        assert address.hostname == "127.0.0.1"
        assert await ask(address.port or 0, b"hello") == b"hello"
    async with reached(control_planes, "acme", internal=True, context=None) as client:
        assert client.config.server == INSIDE


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"service": None}, 'services "kube-apiserver" not found'),
        ({"pods": []}, "Service kube-apiserver has no pod that is ready; wait until one is"),
    ],
)
async def test_service_missing_or_without_ready_pod_is_an_error(
    kubelet: Kubelet, management: Management, change: dict[str, Any], why: str, blocks: bool
) -> None:
    for name, value in change.items():
        setattr(kubelet, name, value)

    def enter_blocking() -> None:
        with forwarded(document(INSIDE), to=management):
            pass

    async def enter() -> None:
        async with forwarding(document(INSIDE), to=management):
            pass

    with pytest.raises(CliError, match=f"failed to forward a port to {HOST}: .*{why}"):
        await (asyncio.to_thread(enter_blocking) if blocks else enter())


async def test_unknown_context_is_an_error(management: Management) -> None:
    with pytest.raises(CliError, match=f"failed to forward a port to {HOST}: .*nosuch"):
        async with forwarding(document(INSIDE), to=Management("nosuch", management.kubeconfig)):
            pass


async def test_address_that_is_no_service_is_an_error(management: Management) -> None:
    with pytest.raises(CliError, match=r"127\.0\.0\.1 is not the name of a Service"):
        async with forwarding(document("https://127.0.0.1:6443"), to=management):
            pass


def test_interrupt_while_port_opens_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    opening = threading.Event()

    @contextlib.asynccontextmanager
    async def waits(*_: object, **__: object) -> AsyncIterator[dict[str, Any]]:
        opening.set()
        await asyncio.Event().wait()
        yield {}

    class Interrupted(Future[Any]):
        """Ctrl-C comes while the main thread waits."""

        @override
        def result(self, timeout: float | None = None) -> Any:
            if self.done():
                return super().result(timeout)
            assert opening.wait(20)
            raise KeyboardInterrupt

    monkeypatch.setattr(port_forward, "forwarding", waits)
    monkeypatch.setattr(port_forward, "Future", Interrupted)
    with pytest.raises(KeyboardInterrupt), forwarded(document(INSIDE), to=Management()):
        pass
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forward a port")]
