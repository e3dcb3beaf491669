"""A real Envoy in front of real API servers: identities, responses, and updates without interruption."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.gateway import routes
from kplane.gateway.envoy import readiness
from kplane.gateway.routes import Route, Upstream
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import create_authority, issue_client
from kplane.provider import ApiError, Client, Resource
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, PODS, SERVICE_ACCOUNTS
from tests.controlplane_operator.controller_manager import running_controllers, running_program
from tests.mcm.control_planes import controllers_token, gone, manifest, works

from .attacker import exchange, http1, statuses
from .conftest import Gateway

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("gateway"), pytest.mark.timeout(300)]

MASTERS = ("system:masters",)
NODES = Resource("v1", "Node", "nodes", namespaced=False)


async def _who(client: Client) -> dict[str, Any]:
    kind = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=kind)
    user_info: dict[str, Any] = answer["status"]["userInfo"]
    return user_info


async def _refusal(client: Client, path: str = "/api/v1/namespaces") -> ApiError:
    with pytest.raises(ApiError) as caught:
        await client.request("GET", path)
    return caught.value


async def test_certificate_user_has_same_identity_as_without_gateway(gateway: Gateway) -> None:
    pair = issue_client(
        gateway.tenants["one"].authorities.client, user="jürgen", groups=("sales", "it, ops", "%REQ(x)%")
    )
    identity = {"client_certificate": pair.certificate, "client_key": pair.key}
    direct_config = dataclasses.replace(gateway.tenants["one"].config, **identity)
    async with Client(direct_config, field_manager="kplane") as client:
        expected = await _who(client)
    async with Client(gateway.config("one", **identity), field_manager="kplane") as client:
        user_info = await _who(client)
    assert sorted(user_info.pop("groups")) == sorted(expected.pop("groups"))
    assert user_info == expected
    assert user_info["username"] == "jürgen"


async def test_certificate_is_accepted_only_by_tenant_of_its_ca(gateway: Gateway) -> None:
    async with Client(gateway.user("one", "admin", groups=MASTERS), field_manager="kplane") as client:
        assert (await client.list(NAMESPACES)).items
    async with Client(gateway.user("one", "admin", groups=MASTERS, path="two"), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401
    stranger = issue_client(create_authority("stranger"), user="admin", groups=MASTERS)
    identity = {"client_certificate": stranger.certificate, "client_key": stranger.key}
    async with Client(gateway.config("one", **identity), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401


async def test_resumed_tls_session_keeps_its_user(gateway: Gateway, tmp_path: Path) -> None:
    certificate = tmp_path / "client.pem"
    pair = issue_client(gateway.tenants["one"].authorities.client, user="admin", groups=MASTERS)
    certificate.write_bytes(pair.certificate + pair.key)
    context = gateway.tls(certificate=certificate)

    def ask(path: str, session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool | None]:
        address = gateway.serving.host, gateway.serving.port
        with (
            socket.create_connection(address, timeout=30) as plain_socket,
            context.wrap_socket(plain_socket, server_hostname="localhost", session=session) as connection,
        ):
            connection.sendall(http1(f"/clusters/{path}/control-plane/api/v1/namespaces/kube-system"))
            return connection.recv(65536), connection.session, connection.session_reused

    answer, session, _ = await asyncio.to_thread(ask, "one", None)
    assert answer.startswith(b"HTTP/1.1 200")
    resumed_answer, _, reused = await asyncio.to_thread(ask, "one", session)
    assert reused
    assert resumed_answer.startswith(b"HTTP/1.1 200")
    other_answer, _, _ = await asyncio.to_thread(ask, "two", session)
    assert other_answer.startswith(b"HTTP/1.1 401")


async def test_token_is_accepted_only_by_tenant_that_issued_it(gateway: Gateway) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"robot-{gateway.serving.port}")
    async with Client(gateway.config("one", token=token), field_manager="kplane") as client:
        assert (await _who(client))["username"].startswith("system:serviceaccount:kube-system:robot-")
    async with Client(gateway.config("two", token=token), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401


async def test_access_log_entry_is_json_without_token(gateway: Gateway, eventually: Callable[..., Any]) -> None:
    async with Client(gateway.config("one", token="aaaa.secret.cccc"), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401

    def lines() -> list[dict[str, Any]]:
        # Envoy writes its own log to the same file.
        log = gateway.runtime.log_path("envoy").read_text()
        assert "secret" not in log
        return [json.loads(line) for line in log.splitlines() if line.startswith("{")]

    entries = await eventually(lines, lambda found: any(line["code"] == 401 for line in found))
    (entry,) = [line for line in entries if line["code"] == 401]
    assert (entry["method"], entry["path"], entry["controlPlane"]) == ("GET", "/api/v1/namespaces", "one")


async def test_gateway_returns_kubernetes_status_without_api_server(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Shortens the wait for an API server that does not answer.
    monkeypatch.setattr(readiness, "_MAX_RETRIES", 2)
    absent_route = Route(
        key="uid-gone", cluster_path="gone", upstream=None, why_absent="it failed, and the reason is this"
    )
    dead_upstream = await _upstream_of_nobody(gateway)
    dead_route = Route(key="uid-dead", cluster_path="dead", upstream=dead_upstream)
    # The gateway verifies credentials by the last API server that the control plane had.
    former_route = dataclasses.replace(gateway.route("one"), key="uid-gone", cluster_path="gone")
    await gateway.serve(*gateway.routes, former_route, dead_route)
    await gateway.serve(gateway.route("one"), gateway.route("two"), absent_route, dead_route)
    async with Client(gateway.config("gone"), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401
    for identity in ({"token": "x"}, _identity(gateway, "one")):
        async with Client(gateway.config("unknown", **identity), field_manager="kplane") as client:
            error = await _refusal(client)
            assert (error.status, error.reason) == (401, "Unauthorized")
    async with Client(gateway.config("gone", token="x"), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401
    async with Client(gateway.config("gone", **_identity(gateway, "one")), field_manager="kplane") as client:
        error = await _refusal(client)
        assert (error.status, error.reason) == (503, "ServiceUnavailable")
        assert "the reason is this" in str(error)
    async with Client(gateway.config("dead", token="x"), field_manager="kplane") as client:
        error = await _refusal(client)
        assert (error.status, error.reason) == (503, "ServiceUnavailable")

    path = "/clusters/one/control-plane/api/v1/namespaces"
    for code, sent in (
        (426, http1(path).replace(b"HTTP/1.1", b"HTTP/1.0")),
        (431, http1(path, f"X-Large: {'x' * (100 << 10)}")),
        (403, http1(path, "Upgrade: other").replace(b"Connection: close", b"Connection: Upgrade")),
        (400, http1(path, "Content-Length: 1", "Transfer-Encoding: chunked")),
    ):
        answer = await exchange(gateway.serving.port, sent, ca=gateway.ca)
        status = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (status["kind"], status["code"], statuses(answer)) == ("Status", code, [code])


async def _upstream_of_nobody(gateway: Gateway) -> Upstream:
    upstream = gateway.routes[0].upstream
    assert upstream is not None
    # Port 1 of the loopback address has no listener.
    return dataclasses.replace(upstream, port=1)


def _identity(gateway: Gateway, name: str) -> dict[str, Any]:
    pair = issue_client(gateway.tenants[name].authorities.client, user="admin", groups=MASTERS)
    return {"client_certificate": pair.certificate, "client_key": pair.key}


@pytest.mark.slow
async def test_kubectl_works_with_certificate_and_with_token(gateway: Gateway, kubectl: Any, tmp_path: Path) -> None:
    async with Client(gateway.tenants["one"].config, field_manager="kplane") as direct:
        token = await controllers_token(direct, account=f"kubectl-{gateway.serving.port}")
    server = gateway.config("one").server
    pair = issue_client(gateway.tenants["one"].authorities.client, user="admin", groups=MASTERS)
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "large", "namespace": "default"},
        "data": {"text": "x" * 900_000},
    }
    for number, identity in enumerate(({"client": pair}, {"token": token})):
        kubeconfig = tmp_path / f"kubeconfig-{number}"
        kubeconfig.write_bytes(render_kubeconfig(server=server, ca=gateway.ca, user="me", **identity))
        assert "configmaps" in await kubectl(kubeconfig, "api-resources", "--cached=false")
        text = json.dumps(manifest)
        assert "large" in await kubectl(kubeconfig, "apply", "--server-side", "-f", "-", stdin=text)
        stored_text = await kubectl(kubeconfig, "get", "configmap", "large", "-o", "jsonpath={.data.text}")
        assert len(stored_text) == 900_000
        output = await kubectl(kubeconfig, "get", "clusterroles", "--chunk-size=10", "-o", "name")
        assert len(output.splitlines()) > 50
        await kubectl(kubeconfig, "delete", "configmap", "large")


@pytest.mark.slow
async def test_kube_controller_manager_works_through_gateway(
    gateway: Gateway, binaries: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    """Uses the official client-go over HTTP/2, with a client certificate."""
    config = gateway.user("one", "system:kube-controller-manager", groups=MASTERS)
    controllers = "--controllers=serviceaccount-controller,namespace-controller"
    async with (
        running_controllers(config, controllers, binaries=binaries, directory=tmp_path),
        Client(gateway.tenants["one"].config, field_manager="kplane") as direct,
    ):
        namespace = await works(direct, eventually)
        await direct.delete(NAMESPACES, namespace)
        await eventually(lambda: gone(direct, NAMESPACES, namespace))


@pytest.mark.slow
async def test_kube_scheduler_works_through_gateway(
    gateway: Gateway, binaries: Any, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    config = gateway.user("one", "system:kube-scheduler", groups=MASTERS)
    name = f"scheduled-{gateway.serving.port}"
    async with (
        running_program("kube-scheduler", config, binaries=binaries, directory=tmp_path),
        Client(gateway.tenants["one"].config, field_manager="kplane") as direct,
    ):
        capacity = {"cpu": "4", "memory": "8Gi", "pods": "10"}
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        await direct.create(
            NODES,
            {
                "metadata": {"name": name},
                "status": {"capacity": capacity, "allocatable": capacity, "conditions": [condition]},
            },
        )
        await direct.apply(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}}, force=True)
        spec = {
            "containers": [{"name": "web", "image": "web"}],
            # No controller removes the taint of new nodes.
            "tolerations": [{"operator": "Exists"}],
        }
        await direct.create(PODS, {"metadata": {"name": name, "namespace": "default"}, "spec": spec})

        async def node() -> str | None:
            pod = await direct.get(PODS, name, namespace="default")
            return pod["spec"].get("nodeName")

        assert await eventually(node) == name
        await direct.delete(PODS, name, namespace="default")
        await direct.delete(NODES, name)


async def test_websocket_watch_passes_through_gateway(gateway: Gateway, tmp_path: Path) -> None:
    """A watch over WebSocket stands for exec, which needs a kubelet."""
    pair = issue_client(gateway.tenants["one"].authorities.client, user="admin", groups=MASTERS)
    certificate = tmp_path / "client.pem"
    certificate.write_bytes(pair.certificate + pair.key)
    key = base64.b64encode(os.urandom(16)).decode()
    upgrade = (
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key}",
        "Origin: https://localhost",
    )
    path = "/clusters/one/control-plane/api/v1/namespaces?watch=true&timeoutSeconds=1"
    sent = http1(path, *upgrade).replace(b"Connection: close", b"Connection: Upgrade")
    answer = await exchange(gateway.serving.port, sent, ca=gateway.ca, certificate=certificate)
    assert answer.startswith(b"HTTP/1.1 101 Switching Protocols")
    assert b'"type":"ADDED"' in answer
    assert b'"name":"kube-system"' in answer


@contextlib.asynccontextmanager
async def _watching(
    gateway: Gateway, namespace: str, certificate: Path
) -> AsyncIterator[tuple[list[str], asyncio.Task]]:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", gateway.serving.port, ssl=gateway.tls(certificate=certificate), server_hostname="localhost"
    )
    path = f"/clusters/one/control-plane/api/v1/namespaces/{namespace}/configmaps?watch=true"
    writer.write(http1(path).replace(b"Connection: close\r\n", b""))
    assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
    seen: list[str] = []

    async def read() -> None:
        while line := await reader.readline():
            if line.startswith(b"{"):
                seen.append(json.loads(line)["object"]["metadata"]["name"])

    task = asyncio.create_task(read())
    try:
        yield seen, task
    finally:
        task.cancel()
        writer.close()


async def test_changes_of_other_routes_interrupt_no_watch_or_request(
    gateway: Gateway, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    certificate = tmp_path / "client.pem"
    pair = issue_client(gateway.tenants["one"].authorities.client, user="admin", groups=MASTERS)
    certificate.write_bytes(pair.certificate + pair.key)
    route_one, route_two = gateway.route("one"), gateway.route("two")
    namespace = f"watched-{gateway.serving.port}"
    created_names: list[str] = []
    async with Client(gateway.user("one", "admin", groups=MASTERS), field_manager="kplane") as client:
        await client.create(NAMESPACES, manifest("v1", "Namespace", namespace))
        async with _watching(gateway, namespace, certificate) as (seen_names, watch):
            stop = asyncio.Event()

            async def load() -> None:
                while not stop.is_set():
                    name = f"made-{len(created_names)}"
                    await client.create(CONFIG_MAPS, manifest("v1", "ConfigMap", name, namespace=namespace))
                    created_names.append(name)

            loading = asyncio.create_task(load())
            for number in range(5):
                other_routes = [
                    gateway.route("two", path=f"other-{number}-{index}", key=f"uid-{number}-{index}")
                    for index in range(4)
                ]
                assert await gateway.serve(route_one, *other_routes) == {}
                assert await gateway.serve(route_one, route_two) == {}
            renewed_route = gateway.route("one")
            assert await gateway.serve(renewed_route, route_two) == {}
            stop.set()
            await loading
            assert len(created_names) > 10
            await eventually(
                lambda: [name for name in seen_names if name in created_names], lambda found: found == created_names
            )
            assert not watch.done()


async def test_refused_route_does_not_block_other_routes(gateway: Gateway) -> None:
    route_two = gateway.route("two")
    assert route_two.upstream is not None
    bad_route = Route(key="uid-bad", cluster_path="bad", upstream=dataclasses.replace(route_two.upstream, ca=b"none"))
    changed_route = dataclasses.replace(
        gateway.route("one"), upstream=dataclasses.replace(route_two.upstream, ca=b"none")
    )
    refused = await gateway.serve(changed_route, route_two, bad_route)
    assert set(refused) == {"uid-bad", "uid-one"}
    for name in ("one", "two"):
        async with Client(gateway.user(name, "admin", groups=MASTERS), field_manager="kplane") as client:
            assert (await client.list(NAMESPACES)).items
    # Without an API server, the gateway verifies no credential, and tells nobody that the control plane exists.
    async with Client(gateway.config("bad", token="x"), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401


async def test_gateway_uses_new_address_of_moved_api_server(gateway: Gateway) -> None:
    old_route, new_route = gateway.route("one"), gateway.route("two", path="one", key="uid-one")
    async with Client(gateway.user("one", "admin", groups=MASTERS), field_manager="kplane") as client:
        assert (await client.list(NAMESPACES)).items
    assert old_route.key == new_route.key
    await gateway.serve(new_route, gateway.route("two"))
    async with Client(gateway.user("two", "admin", groups=MASTERS, path="one"), field_manager="kplane") as client:
        assert (await client.list(NAMESPACES)).items
    async with Client(gateway.user("one", "admin", groups=MASTERS), field_manager="kplane") as client:
        assert (await _refusal(client)).status == 401


async def test_killed_envoy_restarts_with_last_good_configuration(
    gateway: Gateway, eventually: Callable[..., Any]
) -> None:
    assert await gateway.plane.ready()
    before = gateway.runtime.state("envoy").pid
    assert gateway.runtime.kill("envoy")
    async with Client(gateway.user("one", "admin", groups=MASTERS), field_manager="kplane") as client:
        await eventually(lambda: gateway.runtime.state("envoy").pid, lambda pid: pid not in (None, before))
        await eventually(gateway.plane.ready)
        assert (await client.list(NAMESPACES)).items


async def test_serving_certificate_is_replaced_without_disconnects(
    gateway: Gateway, tmp_path: Path, eventually: Callable[..., Any]
) -> None:
    from kplane.pki.primitives import issue_serving

    authority = create_authority("gateway-2")
    pair = issue_serving(authority, common_name="gateway", hosts=["127.0.0.1", "localhost"])
    serving = dataclasses.replace(gateway.serving, certificate=routes.KeyPair(pair.certificate, pair.key))
    async with Client(gateway.user("one", "admin", groups=MASTERS), field_manager="kplane") as client:
        await client.list(NAMESPACES)
        await gateway.plane.apply(gateway.routes, serving=serving)
        await client.list(NAMESPACES)
    identity = _identity(gateway, "one")
    async with Client(
        dataclasses.replace(gateway.config("one", **identity), ca_data=authority.certificate), field_manager="kplane"
    ) as client:
        await eventually(lambda: client.list(NAMESPACES))
