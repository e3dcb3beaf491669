"""ControlPlaneEndpoint: what its status says, whose Secrets it may name, and that silent ones delay nobody."""

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
    """Why an endpoint that has yet to be made is Ready and Reachable, or not: each that it ever said, in order."""
    seen: list[tuple[str, str]] = []
    since = (await field.client.list(CONTROL_PLANE_ENDPOINTS)).resource_version

    async def follow() -> None:
        selector = f"metadata.name={name}"
        async with field.client.watch(
            CONTROL_PLANE_ENDPOINTS, resource_version=since, field_selector=selector
        ) as watch:
            async for event in watch:
                if event.type != "BOOKMARK":
                    said = {
                        each["type"]: each["reason"] for each in event.object.get("status", {}).get("conditions", [])
                    }
                    seen.append((said.get("Ready", ""), said.get("Reachable", "")))

    following = asyncio.create_task(follow())
    try:
        yield seen
    finally:
        following.cancel()
        await asyncio.wait([following])


@pytest_asyncio.fixture(loop_scope="module")
async def server(field: Any) -> AsyncIterator[dict[str, Any]]:
    """A real API server, as the spec of an endpoint: that of the management cluster."""
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    yield {"endpoint": config.server, "credentialsSecretRef": await keep_kubeconfig(field, "server", config=config)}
    # An API server is that of one control plane: the next test has it to itself.
    await clean(field)


async def test_a_kubeconfig_is_used_only_with_its_owners_consent(field: Any, server: dict[str, Any]) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    reference = await keep_kubeconfig(field, "private", config=config, allowed=False)
    await field.create("ControlPlaneEndpoint", "curious", endpoint=config.server, credentialsSecretRef=reference)
    await field.create("ControlPlane", "curious", mode="Dedicated", endpointRef={"name": "curious"})
    for kind in ("ControlPlaneEndpoint", "ControlPlane"):
        await field.becomes(kind, "curious", "SecretNotAllowed")
        told = (await condition(field, "curious", "Ready", of=kind))["message"]
        assert told.endswith('label it controlplane.kplane.dev/allow-endpoint="true"')
    assert "kubeconfigSecretRef" not in (await field.get("ControlPlane", "curious"))["status"]

    await allow(field, "private", value="true")
    for kind in ("ControlPlaneEndpoint", "ControlPlane"):
        await field.becomes(kind, "curious", "Reconciled", timeout=30.0)
    published = (await field.get("ControlPlane", "curious"))["status"]["kubeconfigSecretRef"]

    await allow(field, "private", value=None)
    for kind in ("ControlPlaneEndpoint", "ControlPlane"):
        await field.becomes(kind, "curious", "SecretNotAllowed", timeout=30.0)
    assert (await field.get("ControlPlane", "curious"))["status"]["kubeconfigSecretRef"] == published

    # Its owner may exchange it as well: nobody has to wait for a time to be over.
    await allow(field, "private", value="true")
    await field.client.patch(SECRETS, "private", {"data": {"kubeconfig": "Z2FyYmFnZQ=="}}, namespace="default")
    await field.becomes("ControlPlane", "curious", "CredentialsMissing", timeout=30.0)
    await keep_kubeconfig(field, "private", config=config)
    await field.becomes("ControlPlane", "curious", "Reconciled", timeout=30.0)


@contextlib.asynccontextmanager
async def connect_proxy(address: str) -> AsyncIterator[str]:
    """Serve an HTTP CONNECT proxy that leads to one address, whatever is asked for; gives its URL."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"CONNECT ")
        host, _, port = address.removeprefix("https://").rpartition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def test_api_server_behind_a_proxy_is_adopted_and_published_with_the_proxy(field: Any) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    # A name that is in the certificate, and that only the proxy can lead to.
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
        named = dataclasses.replace(behind, proxy=proxy.replace("://", "://user:secret@"))
        await keep_kubeconfig(field, "behind", config=named)
        await field.becomes("ControlPlane", "behind", "CredentialsMissing", timeout=30.0)
        told = (await condition(field, "behind", "Ready", of="ControlPlane"))["message"]
        assert "proxy-url names a user" in told
        assert "user:" not in told
        await keep_kubeconfig(field, "behind", config=behind)
        await clean(field)


async def test_ready_is_about_what_is_written_and_reachable_about_who_answers(
    field: Any, server: dict[str, Any], impatient: None
) -> None:
    secret = {"credentialsSecretRef": server["credentialsSecretRef"]}
    async with contextlib.AsyncExitStack() as stack:
        silent = stack.enter_context(silent_server())
        seen = await stack.enter_async_context(followed(field, "silent"))
        await field.create("ControlPlaneEndpoint", "good", **server)
        await field.create("ControlPlaneEndpoint", "silent", endpoint=silent.url, **secret)
        await field.create("ControlPlaneEndpoint", "refusing", endpoint="https://127.0.0.1:9", **secret)
        await field.create("ControlPlaneEndpoint", "empty")
        # Published while the silent one has still time to answer.
        assert (await says(field, "silent", "Ready", "True"))["reason"] == "Reconciled"
        assert (await field.get("ControlPlaneEndpoint", "silent"))["status"]["endpoint"] == silent.url
        await field.eventually(lambda: ("Reconciled", "Probing") in seen)
        for name in ("silent", "refusing"):
            assert (await says(field, name, "Reachable", "False"))["reason"] == "EndpointUnreachable"
            assert (await condition(field, name, "Ready"))["status"] == "True"
        assert (await says(field, "good", "Reachable", "True"))["reason"] == "Answered"
        assert (await says(field, "empty", "Ready", "False"))["reason"] == "EndpointPending"
        assert (await condition(field, "empty", "Reachable"))["status"] == "Unknown"


async def test_api_server_that_starts_is_no_failure(field: Any, tmp_path: Path) -> None:
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
    async with serve_over_tls(app, tmp_path) as config, followed(field, "starting") as seen:
        reference = await keep_kubeconfig(field, "starting", config=config)
        await field.create("ControlPlaneEndpoint", "starting", endpoint=config.server, credentialsSecretRef=reference)
        await field.eventually(lambda: asked >= 2)
        assert (await says(field, "starting", "Reachable", "Unknown"))["reason"] == "Probing"
        answer = 200
        assert (await says(field, "starting", "Reachable", "True"))["reason"] == "Answered"
        assert "EndpointUnreachable" not in {reachable for _, reachable in seen}
        assert await warnings() == []

        # The same answer of one that was ready is a failure. The operator asks another URL at once.
        answer = 500
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "starting", {"spec": {"endpoint": f"{config.server}/below"}})
        await says(field, "starting", "Reachable", "False")
        await field.eventually(warnings, lambda found: found == ["EndpointUnreachable"])
    await clean(field)


async def test_what_somebody_observed_wins_over_the_spec_and_what_nobody_wants_goes(
    field: Any, server: dict[str, Any]
) -> None:
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

    # Whoever provides the endpoint writes what it observed; the spec's other URLs stay.
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
        found = await field.get("ControlPlaneEndpoint", "door")
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"] == 2)

    await field.eventually(observed_generation)
    await becomes(endpoint=server["endpoint"], externalEndpoint="https://lb.example", joinEndpoint=joined)

    # When the provider takes its words back, nothing of them is left, nor of what the spec once said.
    await field.client.apply(
        CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "door"}, "status": {}}, **provider, force=True
    )
    await becomes(endpoint=server["endpoint"])
    await field.eventually(published, lambda found: set(found.values()) == {server["endpoint"]})

    # Nobody holds a status to the rules of the spec, so that is done here.
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


async def test_an_endpoint_with_a_condition_of_another_provider_is_kept_up(field: Any, server: dict[str, Any]) -> None:
    provider = {"subresource": "status", "field_manager": "acme-doors"}
    ready = {"type": "Ready", "status": "False", "reason": "Provided", "message": "not yet"}
    ready["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    # The provider is first, as where an endpoint comes with its status.
    await field.client.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": "provided"}, "spec": {}})
    body = {"metadata": {"name": "provided"}, "status": {"conditions": [ready]}}
    await field.client.apply(CONTROL_PLANE_ENDPOINTS, body, **provider, force=True)
    await field.client.patch(CONTROL_PLANE_ENDPOINTS, "provided", {"spec": server})
    assert (await says(field, "provided", "Reachable", "True"))["reason"] == "Answered"
    contested = await says(field, "provided", "Contested", "True")
    assert contested["message"].startswith("field manager 'acme-doors' owns condition Ready; ")
    found = await field.get("ControlPlaneEndpoint", "provided")
    assert found["status"]["endpoint"] == server["endpoint"]
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    # The provider goes on as before, without force.
    body["status"]["conditions"] = [ready | {"status": "True", "message": "now"}]
    await field.client.apply(CONTROL_PLANE_ENDPOINTS, body, **provider)
    assert (await says(field, "provided", "Ready", "True"))["message"] == "now"
    assert (await condition(field, "provided", "Reachable"))["status"] == "True"


async def test_silent_endpoints_delay_nobody(field: Any, shared: ClusterConfig, impatient: None) -> None:
    """More silent ones than the operator has workers, all of them there first; and the good ones do not wait for them.

    Nobody has answered for a silent one, and none has been given up, when the last good one is ready: each of them is
    waited for at this very moment, or is tried again soon.
    """
    reference = await keep_kubeconfig(field, "shared", config=shared)
    with contextlib.ExitStack() as stack:
        names = [f"silent-{number}" for number in range(_SILENT)]
        for name in names:
            silent = stack.enter_context(silent_server())
            await field.create("ControlPlaneEndpoint", name, endpoint=silent.url, credentialsSecretRef=reference)
            await field.create("ControlPlane", name, mode="Dedicated", endpointRef={"name": name})
        for number in range(_GOOD):
            good = {"endpoint": shared.server, "credentialsSecretRef": reference}
            await field.create("ControlPlaneEndpoint", f"good-{number}", **good)
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
        # They are deleted at once too, though nobody can be asked to take anything back.
        for name in names:
            await field.client.delete(CONTROL_PLANES, name)
        for name in names:
            await field.gone(CONTROL_PLANES, name)


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
async def test_at_the_path_of_another_tenant_no_credential_is_written(
    field: Any, server: dict[str, Any], mode: str
) -> None:
    spec = {**server, "endpoint": f"{server['endpoint']}/clusters/victim/control-plane"}
    await field.create("ControlPlaneEndpoint", "thief", **spec)
    await field.create("ControlPlane", "thief", mode=mode, endpointRef={"name": "thief"})
    await field.becomes("ControlPlane", "thief", "EndpointInvalid")
    assert (await field.client.list(SECRETS, namespace="kplane-cp-thief")).items == []
    assert not {"endpoint", "claimedAddress"} & (await field.get("ControlPlane", "thief"))["status"].keys()


async def test_an_api_server_is_that_of_one_control_plane(field: Any, server: dict[str, Any]) -> None:
    """However its address is spelled: two would share identities, and the end of one would be the end of both."""
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
    # Who was never let in takes nothing along.
    await field.client.delete(CONTROL_PLANES, "spelled")
    await field.gone(CONTROL_PLANES, "spelled")
    async with Client(await field.tenant("first"), field_manager="kplane") as tenant:
        await tenant.list(NAMESPACES)

    await field.client.delete(CONTROL_PLANES, "first")
    await field.gone(CONTROL_PLANES, "first")
    await field.becomes("ControlPlane", "same", "Reconciled")
