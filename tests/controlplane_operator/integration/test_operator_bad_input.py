"""Bad input ends in a condition with a reason, blocks nobody else, and never blocks deletion."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from api.names import ALLOW_ENDPOINT_LABEL
from controlplane_operator.kinds import CONTROL_PLANES
from provider import NAMESPACES, SECRETS, ClusterConfig

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """Accepts connections and never says a word."""
    open_connections: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: open_connections.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        server.close()
        for writer in open_connections:
            writer.close()


async def give_credentials(field: Any, name: str, config: ClusterConfig) -> dict[str, str]:
    kubeconfig = base64.b64encode(json.dumps(config.to_kubeconfig()).encode()).decode()
    metadata = {"name": name, "namespace": "default", "labels": {ALLOW_ENDPOINT_LABEL: "true"}}
    await field.client.apply(SECRETS, {"metadata": metadata, "data": {"kubeconfig": kubeconfig}})
    return {"name": name, "namespace": "default"}


async def test_each_mistake_has_its_reason_and_harms_nobody(field: Any) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    wrong = await give_credentials(field, "wrong", config)
    await field.client.create(NAMESPACES, {"metadata": {"name": "kplane-cp-foreign"}})
    await field.create("ControlPlaneClass", "strict", modesAllowed=["Dedicated"])
    await field.create("ControlPlane", "first", virtual={"clusterPath": "wanted"}, deletionPolicy="Destroy")
    first = await field.becomes("ControlPlane", "first", "Reconciled")
    async with silent_server() as silent:
        endpoints = {
            "refusing": {"endpoint": "https://127.0.0.1:9", "credentialsSecretRef": wrong},
            "silent": {"endpoint": silent, "credentialsSecretRef": wrong},
            "wrong-ca": {"endpoint": first["status"]["endpoint"], "credentialsSecretRef": wrong},
            "no-secret": {
                "endpoint": "https://127.0.0.1:9",
                "credentialsSecretRef": {"name": "absent", "namespace": "default"},
            },
            "other-path": {
                "endpoint": "https://127.0.0.1:9/clusters/first/control-plane",
                "credentialsSecretRef": wrong,
            },
            "no-url": {},
            "no-address": {"endpoint": "https://[1::2::3]:6443", "credentialsSecretRef": wrong},
            "no-ca": {
                "endpoint": "https://127.0.0.1:9",
                "credentialsSecretRef": await give_credentials(field, "no-ca", replace(config, ca_data=None)),
            },
            "others-secret": {
                "endpoint": first["status"]["endpoint"],
                "credentialsSecretRef": first["status"]["kubeconfigSecretRef"],
            },
        }
        for name, spec in endpoints.items():
            await field.create("ControlPlaneEndpoint", name, **spec)
        adopted = {
            "refusing": "EndpointUnreachable",
            "silent": "EndpointUnreachable",
            "wrong-ca": "CertificateInvalid",
            "no-secret": "CredentialsMissing",
            "other-path": "EndpointInvalid",
            "no-url": "EndpointPending",
            "no-endpoint": "EndpointPending",
            "no-address": "EndpointInvalid",
            "no-ca": "EndpointInvalid",
            "others-secret": "SecretNotAllowed",
        }
        specs: dict[str, tuple[dict[str, Any], str]] = {
            name: ({"endpointRef": {"name": name}}, reason) for name, reason in adopted.items()
        }
        long = "x" * 64
        specs |= {
            "no-class": ({"classRef": {"name": "absent"}}, "ClassNotFound"),
            "wrong-mode": ({"classRef": {"name": "strict"}}, "ModeNotAllowed"),
            "second": ({"virtual": {"clusterPath": "wanted"}}, "ClusterPathInUse"),
            "root": ({}, "ClusterPathReserved"),
            "clusters": ({}, "ClusterPathReserved"),
            "with.dots": ({}, "InvalidClusterPath"),
            long: ({}, "InvalidClusterPath"),
            "foreign": ({}, "NamespaceForeign"),
            "good.name": ({"virtual": {"clusterPath": "good"}, "deletionPolicy": "Destroy"}, "Reconciled"),
        }
        for name, (spec, _) in specs.items():
            await field.create("ControlPlane", name, **spec)
        for name, (_, reason) in specs.items():
            found = await field.becomes("ControlPlane", name, reason)
            ready = next(item for item in found["status"]["conditions"] if item["type"] == "Ready")
            assert ready["message"]
        assert (await field.get("ControlPlane", "first"))["status"] == first["status"]
        for name in specs:
            await field.client.delete(CONTROL_PLANES, name)
        for name in specs:
            await field.gone(CONTROL_PLANES, name)
    # What was there before is there still.
    assert (await field.client.get(NAMESPACES, "kplane-cp-foreign"))["status"]["phase"] == "Active"
    assert int(await field.handle.tenants_etcd.count("/clusters/wanted/")) > 100
    await field.client.delete(NAMESPACES, "kplane-cp-foreign")


async def test_the_next_one_gets_a_path_when_its_holder_is_gone(field: Any) -> None:
    await field.create("ControlPlane", "holder", virtual={"clusterPath": "turns"}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "holder", "Reconciled")
    await field.create("ControlPlane", "waiting", virtual={"clusterPath": "turns"}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "waiting", "ClusterPathInUse")
    await field.client.delete(CONTROL_PLANES, "holder")
    await field.becomes("ControlPlane", "waiting", "Reconciled")


async def test_an_api_server_that_says_something_else_each_time_is_asked_at_an_easy_pace(
    field: Any, tls_server: Any
) -> None:
    asked: list[float] = []

    async def refuse(_: web.BaseRequest) -> web.Response:
        """Refuse everything, in other words each time."""
        asked.append(asyncio.get_running_loop().time())
        return web.Response(status=503, text=f"request {len(asked)} failed")

    async with tls_server(refuse) as served:
        config = replace(served, token="any")
        reference = await give_credentials(field, "babbling", config)
        await field.create("ControlPlaneEndpoint", "babbling", endpoint=config.server, credentialsSecretRef=reference)
        await field.create("ControlPlane", "babbling", endpointRef={"name": "babbling"})
        await field.eventually(lambda: len(asked), lambda count: count >= 8, timeout=120.0)
        assert asked[7] - asked[1] > 1.5


async def test_without_a_shared_etcd_a_virtual_control_plane_says_so_and_can_be_deleted(
    field_without_etcd: Any,
) -> None:
    field = field_without_etcd
    await field.create("ControlPlane", "homeless", deletionPolicy="Destroy")
    found = await field.becomes("ControlPlane", "homeless", "Failed")
    assert "--shared-etcd-endpoint" in next(c for c in found["status"]["conditions"] if c["type"] == "Ready")["message"]
    await field.client.delete(CONTROL_PLANES, "homeless")
    await field.gone(CONTROL_PLANES, "homeless")
