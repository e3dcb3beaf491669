"""ControlPlaneEndpoint: status, references to Secrets of users, and silent endpoints, which delay no other."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import EVENTS, NAMESPACES, SECRETS
from tests.silent_server import silent_server
from tests.tls_server import serve_over_tls

from .conftest import clean, keep_kubeconfig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_SILENT = 24
_GOOD = 8


async def allow(field: Any, name: str, *, value: str | None) -> None:
    await field.client.patch(
        SECRETS, name, {"metadata": {"labels": {ALLOW_ENDPOINT_LABEL: value}}}, namespace="default"
    )


async def condition(field: Any, name: str, kind: str, *, of: str = "ControlPlaneEndpoint") -> dict[str, Any]:
    conditions = (await field.get(of, name)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


async def says(field: Any, name: str, kind: str, status: str, *, of: str = "ControlPlaneEndpoint") -> dict[str, Any]:
    async def found() -> dict[str, Any]:
        return await condition(field, name, kind, of=of)

    result: dict[str, Any] = await field.eventually(found, lambda item: item.get("status") == status)
    return result


@contextlib.asynccontextmanager
async def followed(field: Any, name: str) -> AsyncIterator[list[tuple[str, str]]]:
    """Record the reasons of conditions Ready and Reachable of a future endpoint, for each of its changes in order."""
    history: list[tuple[str, str]] = []
    since = (await field.client.list(CONTROL_PLANE_ENDPOINTS)).resource_version

    async def follow() -> None:
        selector = f"metadata.name={name}"
        async with field.client.watch(
            CONTROL_PLANE_ENDPOINTS, resource_version=since, field_selector=selector
        ) as watch:
            async for event in watch:
                if event.type != "BOOKMARK":
                    reasons = {
                        item["type"]: item["reason"] for item in event.object.get("status", {}).get("conditions", [])
                    }
                    history.append((reasons.get("Ready", ""), reasons.get("Reachable", "")))

    following = asyncio.create_task(follow())
    try:
        yield history
    finally:
        following.cancel()
        await asyncio.wait([following])


@pytest_asyncio.fixture(loop_scope="module")
async def server(field: Any) -> AsyncIterator[dict[str, Any]]:
    """Spec of an endpoint for the API server of the management cluster."""
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    yield {"endpoint": config.server, "credentialsSecretRef": await keep_kubeconfig(field, "server", config=config)}
    # A single control plane can adopt an API server: free this server for the next test.
    await clean(field)


async def test_endpoint_uses_kubeconfig_only_with_allow_label(field: Any, server: dict[str, Any]) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    reference = await keep_kubeconfig(field, "private", config=config, allowed=False)
    await field.create("ControlPlaneEndpoint", "curious", endpoint=config.server, credentialsSecretRef=reference)
    await field.create("ControlPlane", "curious", mode="Dedicated", endpointRef={"name": "curious"})
    for kind in ("ControlPlaneEndpoint", "ControlPlane"):
        await field.becomes(kind, "curious", "SecretNotAllowed")
        message = (await condition(field, "curious", "Ready", of=kind))["message"]
        assert message.endswith('label it controlplane.kplane.dev/allow-endpoint="true"')
    assert "kubeconfigSecretRef" not in (await field.get("ControlPlane", "curious"))["status"]

    await allow(field, "private", value="true")
    for kind in ("ControlPlaneEndpoint", "ControlPlane"):
        await field.becomes(kind, "curious", "Reconciled", timeout=30.0)
    published = (await field.get("ControlPlane", "curious"))["status"]["kubeconfigSecretRef"]

    await allow(field, "private", value=None)
    for kind in ("ControlPlaneEndpoint", "ControlPlane"):
        await field.becomes(kind, "curious", "SecretNotAllowed", timeout=30.0)
    assert (await field.get("ControlPlane", "curious"))["status"]["kubeconfigSecretRef"] == published

    # The operator observes changes of the kubeconfig, without a wait for its retry interval.
    await allow(field, "private", value="true")
    await field.client.patch(SECRETS, "private", {"data": {"kubeconfig": "Z2FyYmFnZQ=="}}, namespace="default")
    await field.becomes("ControlPlane", "curious", "CredentialsMissing", timeout=30.0)
    await keep_kubeconfig(field, "private", config=config)
    await field.becomes("ControlPlane", "curious", "Reconciled", timeout=30.0)


@contextlib.asynccontextmanager
async def connect_proxy(address: str) -> AsyncIterator[str]:
    """Run an HTTP CONNECT proxy that connects all requests to `address`, and yield its URL."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"CONNECT ")
        host, _, port = address.removeprefix("https://").rpartition(":")
        upstream_reader, upstream_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, upstream_writer), copy(upstream_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_adopted_api_server_behind_proxy_is_published_with_proxy(field: Any) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    # The certificate has this name, and only the proxy can resolve it.
    url = "https://kubernetes.default.svc:6443"
    async with connect_proxy(config.server) as proxy:
        behind = dataclasses.replace(config.with_server(url), proxy=proxy)
        reference = await keep_kubeconfig(field, "behind", config=behind)
        await field.create("ControlPlaneEndpoint", "behind", endpoint=url, credentialsSecretRef=reference)
        await field.create("ControlPlane", "behind", mode="Dedicated", endpointRef={"name": "behind"})
        await field.becomes("ControlPlane", "behind", "Reconciled", timeout=30.0)
        assert (await says(field, "behind", "Reachable", "True"))["reason"] == "Answered"
        for secret in ("kubeconfigSecretRef", "controllersSecretRef"):
            published = await field.tenant("behind", secret=secret)
            assert published.proxy == proxy
            await field.lets_in(published)
        config_with_user = dataclasses.replace(behind, proxy=proxy.replace("://", "://user:secret@"))
        await keep_kubeconfig(field, "behind", config=config_with_user)
        await field.becomes("ControlPlane", "behind", "CredentialsMissing", timeout=30.0)
        message = (await condition(field, "behind", "Ready", of="ControlPlane"))["message"]
        assert "proxy-url names a user" in message
        assert "user:" not in message
        await keep_kubeconfig(field, "behind", config=behind)
        await clean(field)


async def test_unreachable_endpoint_is_ready_and_not_reachable(
    field: Any, server: dict[str, Any], impatient: None
) -> None:
    secret = {"credentialsSecretRef": server["credentialsSecretRef"]}
    async with contextlib.AsyncExitStack() as stack:
        silent = stack.enter_context(silent_server())
        history = await stack.enter_async_context(followed(field, "silent"))
        await field.create("ControlPlaneEndpoint", "good", **server)
        await field.create("ControlPlaneEndpoint", "silent", endpoint=silent.url, **secret)
        await field.create("ControlPlaneEndpoint", "refusing", endpoint="https://127.0.0.1:9", **secret)
        await field.create("ControlPlaneEndpoint", "empty")
        # The operator publishes the silent endpoint before its probe times out.
        assert (await says(field, "silent", "Ready", "True"))["reason"] == "Reconciled"
        assert (await field.get("ControlPlaneEndpoint", "silent"))["status"]["endpoint"] == silent.url
        await field.eventually(lambda: ("Reconciled", "Probing") in history)
        for name in ("silent", "refusing"):
            assert (await says(field, name, "Reachable", "False"))["reason"] == "EndpointUnreachable"
            assert (await condition(field, name, "Ready"))["status"] == "True"
        assert (await says(field, "good", "Reachable", "True"))["reason"] == "Answered"
        assert (await says(field, "empty", "Ready", "False"))["reason"] == "EndpointPending"
        assert (await condition(field, "empty", "Reachable"))["status"] == "Unknown"


async def test_starting_api_server_is_probed_without_a_warning(field: Any, tmp_path: Path) -> None:
    answer = 500
    asked = 0

    async def readyz(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=answer, text="[-]poststarthook/rbac/bootstrap-roles failed: not finished")

    async def warnings() -> list[str]:
        events = (await field.client.list(EVENTS, namespace="default")).items
        return [
            event["reason"]
            for event in events
            if event["involvedObject"]["name"] == "starting" and event["type"] == "Warning"
        ]

    app = web.Application()
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/below/readyz", readyz)
    async with serve_over_tls(app, tmp_path) as config, followed(field, "starting") as history:
        reference = await keep_kubeconfig(field, "starting", config=config)
        await field.create("ControlPlaneEndpoint", "starting", endpoint=config.server, credentialsSecretRef=reference)
        await field.eventually(lambda: asked >= 2)
        assert (await says(field, "starting", "Reachable", "Unknown"))["reason"] == "Probing"
        answer = 200
        assert (await says(field, "starting", "Reachable", "True"))["reason"] == "Answered"
        assert "EndpointUnreachable" not in {reachable for _, reachable in history}
        assert await warnings() == []

        # The same response after the API server was ready is a failure. The operator probes a changed URL at once.
        answer = 500
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "starting", {"spec": {"endpoint": f"{config.server}/below"}})
        await says(field, "starting", "Reachable", "False")
        await field.eventually(warnings, lambda found: found == ["EndpointUnreachable"])
    await clean(field)


async def test_urls_in_status_of_provider_override_the_spec(field: Any, server: dict[str, Any]) -> None:
    outside, joined = "https://outside.example", "https://join.example"

    async def urls() -> dict[str, str]:
        status = (await field.get("ControlPlaneEndpoint", "door")).get("status", {})
        return {name: url for name, url in status.items() if name.endswith(("endpoint", "Endpoint"))}

    async def becomes(**wanted: str) -> None:
        await field.eventually(urls, lambda found: found == wanted)

    async def published() -> dict[str, str]:
        status = (await field.get("ControlPlane", "door"))["status"]
        return {item["type"]: item["url"] for item in status["endpoints"]}

    await field.create("ControlPlaneEndpoint", "door", **server, externalEndpoint=outside)
    await field.create("ControlPlane", "door", mode="Dedicated", endpointRef={"name": "door"})
    await field.becomes("ControlPlane", "door", "Reconciled")
    await becomes(endpoint=server["endpoint"], externalEndpoint=outside)
    first = {"Internal": server["endpoint"], "External": outside, "Join": outside}
    await field.eventually(published, lambda found: found == first)

    # A provider writes observed URLs to the status; other URLs of the spec stay.
    observed = {
        "metadata": {"name": "door"},
        "status": {"externalEndpoint": "https://lb.example", "joinEndpoint": joined},
    }
    provider = {"subresource": "status", "field_manager": "load-balancer"}
    await field.client.apply(CONTROL_PLANE_ENDPOINTS, observed, **provider, force=True)
    await field.eventually(
        published,
        lambda found: found == {"Internal": server["endpoint"], "External": "https://lb.example", "Join": joined},
    )
    await field.client.patch(CONTROL_PLANE_ENDPOINTS, "door", {"spec": {"externalEndpoint": None}})

    async def observed_generation() -> bool:
        endpoint = await field.get("ControlPlaneEndpoint", "door")
        return bool(endpoint["status"]["observedGeneration"] == endpoint["metadata"]["generation"] == 2)

    await field.eventually(observed_generation)
    await becomes(endpoint=server["endpoint"], externalEndpoint="https://lb.example", joinEndpoint=joined)

    # When the provider removes its URLs, the status keeps neither these URLs nor former URLs of the spec.
    await field.client.apply(
        CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "door"}, "status": {}}, **provider, force=True
    )
    await becomes(endpoint=server["endpoint"])
    await field.eventually(published, lambda found: set(found.values()) == {server["endpoint"]})

    # The CRD validates URLs of the spec only, so the operator validates URLs of the status.
    for bad in ("http://plain.example", "https://user:secret@api.example", "https://api.example/?to=evil"):
        await field.client.apply(
            CONTROL_PLANE_ENDPOINTS,
            {"metadata": {"name": "door"}, "status": {"joinEndpoint": bad}},
            **provider,
            force=True,
        )
        for kind in ("ControlPlaneEndpoint", "ControlPlane"):
            await field.becomes(kind, "door", "EndpointInvalid")
        assert set((await published()).values()) == {server["endpoint"]}
        await field.client.apply(
            CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "door"}, "status": {}}, **provider, force=True
        )
        await field.becomes("ControlPlane", "door", "Reconciled")


async def test_endpoint_with_foreign_ready_condition_is_reconciled(field: Any, server: dict[str, Any]) -> None:
    provider = {"subresource": "status", "field_manager": "acme-doors"}
    ready = {"type": "Ready", "status": "False", "reason": "Provided", "message": "not yet"}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    # The provider writes the status first, as a provider does that creates endpoints with a status.
    await field.client.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "provided"}, "spec": {}})
    body = {"metadata": {"name": "provided"}, "status": {"conditions": [ready]}}
    await field.client.apply(CONTROL_PLANE_ENDPOINTS, body, **provider, force=True)
    await field.client.patch(CONTROL_PLANE_ENDPOINTS, "provided", {"spec": server})
    assert (await says(field, "provided", "Reachable", "True"))["reason"] == "Answered"
    contested = await says(field, "provided", "Contested", "True")
    assert contested["message"].startswith("field manager 'acme-doors' owns condition Ready; ")
    endpoint = await field.get("ControlPlaneEndpoint", "provided")
    assert endpoint["status"]["endpoint"] == server["endpoint"]
    assert endpoint["status"]["observedGeneration"] == endpoint["metadata"]["generation"]
    # The provider can still apply its condition without force.
    body["status"]["conditions"] = [ready | {"status": "True", "message": "now"}]
    await field.client.apply(CONTROL_PLANE_ENDPOINTS, body, **provider)
    assert (await says(field, "provided", "Ready", "True"))["message"] == "now"
    assert (await condition(field, "provided", "Reachable"))["status"] == "True"


async def test_silent_endpoints_do_not_delay_other_control_planes(
    field: Any, shared: ClusterConfig, impatient: None
) -> None:
    """More silent endpoints than workers of the operator, all created before the good endpoints.

    When the last good endpoint is ready, probes of the silent endpoints are in flight or due for a retry.
    """
    reference = await keep_kubeconfig(field, "shared", config=shared)
    with contextlib.ExitStack() as stack:
        names = [f"silent-{number}" for number in range(_SILENT)]
        for name in names:
            silent = stack.enter_context(silent_server())
            await field.create("ControlPlaneEndpoint", name, endpoint=silent.url, credentialsSecretRef=reference)
            await field.create("ControlPlane", name, mode="Dedicated", endpointRef={"name": name})
        for number in range(_GOOD):
            spec = {"endpoint": shared.server, "credentialsSecretRef": reference}
            await field.create("ControlPlaneEndpoint", f"good-{number}", **spec)
            await field.create("ControlPlane", f"good-{number}", endpointRef={"name": f"good-{number}"})
        for number in range(_GOOD):
            await field.becomes("ControlPlane", f"good-{number}", "Reconciled")
            await says(field, f"good-{number}", "Reachable", "True")
        for name in names:

            async def looked_at(name: str = name) -> dict[str, Any]:
                return dict((await field.get("ControlPlane", name)).get("status", {}))

            status = await field.eventually(looked_at)
            ready = next(item for item in status["conditions"] if item["type"] == "Ready")
            assert ready["reason"] in {"Provisioning", "EndpointUnreachable"}
            assert status["phase"] == "Provisioning"
        # The operator deletes these control planes at once, although it cannot revoke their credentials.
        for name in names:
            await field.client.delete(CONTROL_PLANES, name)
        for name in names:
            await field.gone(CONTROL_PLANES, name)


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
async def test_endpoint_at_path_of_another_tenant_gets_no_credentials(
    field: Any, server: dict[str, Any], mode: str
) -> None:
    spec = {**server, "endpoint": f"{server['endpoint']}/clusters/victim/control-plane"}
    await field.create("ControlPlaneEndpoint", "thief", **spec)
    await field.create("ControlPlane", "thief", mode=mode, endpointRef={"name": "thief"})
    await field.becomes("ControlPlane", "thief", "EndpointInvalid")
    assert (await field.client.list(SECRETS, namespace="kplane-cp-thief")).items == []
    assert not {"endpoint", "claimedAddress"} & (await field.get("ControlPlane", "thief"))["status"].keys()


async def test_second_control_plane_of_an_api_server_is_refused(field: Any, server: dict[str, Any]) -> None:
    """The address may be spelled differently. Both control planes would share identities, and lose them together."""
    port = server["endpoint"].rpartition(":")[2]
    doors = {"first": server["endpoint"], "same": f"{server['endpoint']}/", "spelled": f"https://127.1:{port}"}
    for name, url in doors.items():
        await field.create("ControlPlaneEndpoint", name, **{**server, "endpoint": url})
        await field.create("ControlPlane", name, mode="Dedicated", endpointRef={"name": name})
        await field.becomes("ControlPlane", name, "Reconciled" if name == "first" else "EndpointInUse")
    for name in ("same", "spelled"):
        assert (await condition(field, name, "Ready", of="ControlPlane"))["message"].startswith(
            f"the API server at {server['endpoint']} is that of control plane first,"
        )
        assert (await field.client.list(SECRETS, namespace=f"kplane-cp-{name}")).items == []
    # The deletion of a refused control plane revokes no credentials.
    await field.client.delete(CONTROL_PLANES, "spelled")
    await field.gone(CONTROL_PLANES, "spelled")
    async with Client(await field.tenant("first"), field_manager="kplane") as tenant:
        await tenant.list(NAMESPACES)

    await field.client.delete(CONTROL_PLANES, "first")
    await field.gone(CONTROL_PLANES, "first")
    await field.becomes("ControlPlane", "same", "Reconciled")
