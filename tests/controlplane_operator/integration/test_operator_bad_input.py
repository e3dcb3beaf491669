"""Bad input leads to a condition with a reason, and blocks neither other control planes nor deletion."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import NAMESPACES
from tests.silent_server import silent_server

from .conftest import keep_kubeconfig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def test_bad_input_has_its_reason_and_affects_no_other_control_plane(
    field: Any, house: dict[str, Any], shared: ClusterConfig, impatient: None
) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    wrong_secret = await keep_kubeconfig(field, "wrong", config=config)
    await field.client.create(NAMESPACES, {"metadata": {"name": "kplane-cp-foreign"}})
    await field.create("ControlPlaneClass", "strict", modesAllowed=["Dedicated"])
    first = await field.settles(lambda: field.get("ControlPlane", "house"))
    good_endpoint = {
        "endpoint": shared.server,
        "credentialsSecretRef": await keep_kubeconfig(field, "good", config=shared),
    }
    with silent_server() as silent:
        endpoints = {
            "refusing": {"endpoint": "https://127.0.0.1:9", "credentialsSecretRef": wrong_secret},
            "silent": {"endpoint": silent.url, "credentialsSecretRef": wrong_secret},
            "wrong-ca": {"endpoint": first["status"]["endpoint"], "credentialsSecretRef": wrong_secret},
            "no-secret": {
                "endpoint": "https://127.0.0.1:9",
                "credentialsSecretRef": {"name": "absent", "namespace": "default"},
            },
            "other-path": {
                "endpoint": "https://127.0.0.1:9/clusters/house/control-plane",
                "credentialsSecretRef": wrong_secret,
            },
            "no-url": {},
            "good": good_endpoint,
            "no-address": {"endpoint": "https://[1::2::3]:6443", "credentialsSecretRef": wrong_secret},
            "no-ca": {
                "endpoint": "https://127.0.0.1:9",
                "credentialsSecretRef": await keep_kubeconfig(field, "no-ca", config=replace(config, ca_data=None)),
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
        specs |= {
            "no-class": ({"classRef": {"name": "absent"}}, "ClassNotFound"),
            "wrong-mode": ({"classRef": {"name": "strict"}}, "ModeNotAllowed"),
            "no-gateway": ({"endpointPolicy": "Gateway"}, "NoGateway"),
            "no-name": ({"endpointStyle": "HostName"}, "NoGateway"),
            "second": ({"virtual": {"clusterPath": "house"}}, "ClusterPathInUse"),
            "foreign": ({}, "NamespaceConflict"),
            "good.name": ({"virtual": {"clusterPath": "good"}, "endpointRef": {"name": "good"}}, "Reconciled"),
        }
        for name, (spec, _) in specs.items():
            await field.create("ControlPlane", name, **spec)
        for name, (_, reason) in specs.items():
            obj = await field.becomes("ControlPlane", name, reason)
            ready = next(item for item in obj["status"]["conditions"] if item["type"] == "Ready")
            assert ready["message"]
        current = (await field.get("ControlPlane", "house"))["status"]
        # The operator may have measured the storage in the meantime.
        assert current | {"storage": None} == first["status"] | {"storage": None}
        for name in specs:
            await field.client.delete(CONTROL_PLANES, name)
        for name in specs:
            await field.gone(CONTROL_PLANES, name)
    # The foreign namespace and the data of control plane house remain.
    assert (await field.client.get(NAMESPACES, "kplane-cp-foreign"))["status"]["phase"] == "Active"
    assert int(await field.handle.tenants_etcd.count("/clusters/house/")) > 100
    await field.client.delete(NAMESPACES, "kplane-cp-foreign")


@pytest.mark.slow
async def test_waiting_control_plane_gets_path_after_holder_is_deleted(field: Any) -> None:
    await field.create("ControlPlane", "holder", virtual={"clusterPath": "turns"}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "holder", "Reconciled")
    await field.create("ControlPlane", "waiting", virtual={"clusterPath": "turns"}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "waiting", "ClusterPathInUse")
    await field.client.delete(CONTROL_PLANES, "holder")
    await field.becomes("ControlPlane", "waiting", "Reconciled")


async def test_api_server_with_changing_errors_is_probed_with_backoff(field: Any, tls_server: Any) -> None:
    request_times: list[float] = []

    async def refuse(_: web.BaseRequest) -> web.Response:
        """Refuse each request with a different message."""
        request_times.append(asyncio.get_running_loop().time())
        return web.Response(status=503, text=f"request {len(request_times)} failed")

    async with tls_server(refuse) as served:
        config = replace(served, token="any")
        reference = await keep_kubeconfig(field, "babbling", config=config)
        await field.create("ControlPlaneEndpoint", "babbling", endpoint=config.server, credentialsSecretRef=reference)
        await field.create("ControlPlane", "babbling", endpointRef={"name": "babbling"})
        await field.eventually(lambda: len(request_times), lambda count: count >= 8, timeout=120.0)
        assert request_times[7] - request_times[1] > 1.5
