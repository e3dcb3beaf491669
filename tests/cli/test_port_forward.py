"""When an address has to be forwarded, where connections go, and what is told if that fails."""

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
def test_services_alone_are_inside(server: str, expected: bool) -> None:
    assert is_inside(document(server)) is expected


@pytest_asyncio.fixture
async def kubelet(tmp_path: Path) -> AsyncIterator[Kubelet]:
    """The management cluster, with a Service whose pod sends back what it gets."""
    async with fake.serving(tmp_path) as found:
        found.serve = fake.echo
        found.service = {"selector": {"app": "kube-apiserver"}, "ports": [{"port": 6443, "targetPort": "web"}]}
        found.pods = [fake.pod("api-0")]
        yield found


@pytest.fixture
def management(kubelet: Kubelet, tmp_path: Path) -> Management:
    path = tmp_path / "kubeconfig"
    cluster = {"server": kubelet.config.server, "certificate-authority": str(tmp_path / "ca.pem")}
    assert kubelet.config.ca_data is not None
    (tmp_path / "ca.pem").write_bytes(kubelet.config.ca_data)
    written = document(kubelet.config.server) | {"clusters": [{"name": "kplane-acme", "cluster": cluster}]}
    path.write_text(yaml.safe_dump(written))
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


async def test_connections_go_to_the_target_port_of_a_pod(kubelet: Kubelet, management: Management) -> None:
    async with forwarding(document(INSIDE), to=management) as found:
        assert await ask(port_of(found), b"hello") == b"hello"
    [asked] = kubelet.asked
    assert (asked.match_info["namespace"], asked.match_info["pod"]) == ("kplane-cp-acme", "api-0")
    assert asked.query["ports"] == "8080"
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port_of(found))


async def test_a_new_connection_goes_to_a_new_pod_after_the_end_of_the_first(
    kubelet: Kubelet, management: Management
) -> None:
    async with forwarding(document(INSIDE), to=management) as found:
        await ask(port_of(found), b"hello")
        kubelet.pods = [fake.pod("api-1")]
        await ask(port_of(found), b"hello")
    assert [each.match_info["pod"] for each in kubelet.asked] == ["api-0", "api-1"]


async def test_a_caller_that_blocks_has_the_port_meanwhile(kubelet: Kubelet, management: Management) -> None:
    def use() -> tuple[bytes, int]:
        with forwarded(document(INSIDE), to=management) as found:
            port = port_of(found)
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(b"hello")
                return connection.recv(5), port

    answer, port = await asyncio.to_thread(use)
    assert answer == b"hello"
    assert not [each for each in threading.enumerate() if each.name.startswith("forward a port")]
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_a_control_plane_is_reached_through_the_port(
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
async def test_a_service_that_leads_nowhere_is_an_error(
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


async def test_a_context_that_does_not_exist_is_an_error(management: Management) -> None:
    with pytest.raises(CliError, match=f"failed to forward a port to {HOST}: .*nosuch"):
        async with forwarding(document(INSIDE), to=Management("nosuch", management.kubeconfig)):
            pass


async def test_an_address_that_is_no_service_is_an_error(management: Management) -> None:
    with pytest.raises(CliError, match=r"127\.0\.0\.1 is not the name of a Service"):
        async with forwarding(document("https://127.0.0.1:6443"), to=management):
            pass


def test_an_interruption_while_the_port_is_opened_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not [each for each in threading.enumerate() if each.name.startswith("forward a port")]
