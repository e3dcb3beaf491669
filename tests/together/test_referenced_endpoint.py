"""Virtual control plane behind an existing endpoint: a shared address that routes by path."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from benchmarks.surroundings import administrator_token, open_namespace, start_api_server
from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import DEPLOYMENTS, REPLICA_SETS, SECRETS
from kplane.workloads import ProcessRuntime

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

_PATH = "/clusters/routed/control-plane"


def _envoy(port: int, *, backend: ClusterConfig, directory: Path) -> dict[str, Any]:
    """Return a configuration of Envoy that routes only the path of a tenant to an API server."""
    host, _, backend_port = backend.server.removeprefix("https://").partition(":")
    match = {
        "match": {"prefix": f"{_PATH}/"},
        "route": {
            "cluster": "backend",
            "timeout": "0s",
            "regex_rewrite": {"pattern": {"regex": f"^{_PATH}/"}, "substitution": "/"},
        },
    }
    filters = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{filters}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "tenants",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [match]}]},
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{filters}.http.router.v3.Router"},
            }
        ],
    }
    tls = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
    serving = {
        "certificate_chain": {"filename": f"{directory}/serving.crt"},
        "private_key": {"filename": f"{directory}/serving.key"},
    }
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "shared",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
                    "filter_chains": [
                        {
                            "filters": [{"name": "http", "typed_config": manager}],
                            "transport_socket": {
                                "name": "tls",
                                "typed_config": {
                                    "@type": f"{tls}.DownstreamTlsContext",
                                    "common_tls_context": {
                                        "tls_certificates": [serving],
                                        "alpn_protocols": ["h2", "http/1.1"],
                                    },
                                },
                            },
                        }
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "backend",
                    "connect_timeout": "5s",
                    "load_assignment": {
                        "cluster_name": "backend",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {
                                        "endpoint": {
                                            "address": {
                                                "socket_address": {"address": host, "port_value": int(backend_port)}
                                            }
                                        }
                                    }
                                ]
                            }
                        ],
                    },
                    "transport_socket": {
                        "name": "tls",
                        "typed_config": {
                            "@type": f"{tls}.UpstreamTlsContext",
                            "common_tls_context": {
                                "validation_context": {"trusted_ca": {"filename": f"{directory}/backend-ca.crt"}}
                            },
                        },
                    },
                }
            ],
        }
    }


@pytest_asyncio.fixture(loop_scope="module")
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as exit_stack:
        yield exit_stack


@pytest_asyncio.fixture(loop_scope="module")
async def shared_address(
    platform: Any, hold_port: Callable[[], int], tmp_path: Path, stack: contextlib.AsyncExitStack
) -> AsyncIterator[dict[str, Any]]:
    """Run Envoy before an API server that kplane does not run. Return the spec of its ControlPlaneEndpoint."""
    import envoy

    runtime = await stack.enter_async_context(ProcessRuntime(tmp_path / "runtime", programs=platform.handle.programs))
    backend = (await start_api_server(runtime, "backend", directory=tmp_path)).administrator()
    async with Client(backend, field_manager="kplane") as client:
        token = await administrator_token(client)
    authority = create_authority("shared-address")
    serving = issue_serving(authority, common_name="envoy", hosts=["127.0.0.1"])
    port = hold_port()
    for name, content in (
        ("serving.crt", serving.certificate),
        ("serving.key", serving.key),
        ("backend-ca.crt", backend.ca_data),
        ("envoy.yaml", yaml.safe_dump(_envoy(port, backend=backend, directory=tmp_path)).encode()),
    ):
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            str(Path(envoy.__file__).parent / "_bin" / "envoy"),
            "--config-path",
            str(tmp_path / "envoy.yaml"),
            "--use-dynamic-base-id",
            "--concurrency",
            "1",
            "--log-level",
            "warn",
            stdout=log,
            stderr=log,
        )
    try:
        config = ClusterConfig(server=f"https://127.0.0.1:{port}", ca_data=authority.certificate, token=token)
        async with Client(config.with_server(f"https://127.0.0.1:{port}{_PATH}"), field_manager="kplane") as client:
            await platform.eventually(lambda: client.request("GET", "/version"))
        kubeconfig = base64.b64encode(json.dumps(config.to_kubeconfig()).encode()).decode()
        reference = {"name": "shared-address", "namespace": "default"}
        metadata = {**reference, "labels": {ALLOW_ENDPOINT_LABEL: "true"}}
        await open_namespace(platform.client)
        await platform.client.apply(SECRETS, {"metadata": metadata, "data": {"kubeconfig": kubeconfig}}, force=True)
        yield {"endpoint": config.server, "credentialsSecretRef": reference}
        # Its control plane is deleted first, while the API server is reachable for cleanup.
        await platform.delete("ControlPlane", "routed")
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode in (0, -15), os.fsdecode((tmp_path / "log").read_bytes())


async def test_kubectl_and_controllers_work_through_a_routed_path(
    platform: Any, shared_address: dict[str, Any], kubectl: Any, tmp_path: Path
) -> None:
    await platform.create("ControlPlaneEndpoint", "shared", **shared_address)
    await platform.create("ControlPlane", "routed", endpointRef={"name": "shared"})
    await platform.create(
        "ControlPlaneRegistration", "routed", controlPlaneRef={"name": "routed"}, services=["controllers"]
    )
    status = await platform.ready("ControlPlane", "routed")
    assert status["endpoint"] == shared_address["endpoint"] + _PATH
    registration = await platform.ready("ControlPlaneRegistration", "routed")
    assert registration["resolvedEndpoint"] == status["endpoint"]

    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_bytes(await platform.kubeconfig("routed"))
    assert "kplane-system" in await kubectl(kubeconfig, "get", "namespaces")
    await kubectl(kubeconfig, "create", "namespace", "shop")
    await kubectl(kubeconfig, "create", "deployment", "web", "--image=web", "--replicas=3", "-n", "shop")

    async with Client(await platform.tenant("routed"), field_manager="kplane") as tenant:
        assert (await tenant.get(DEPLOYMENTS, "web", namespace="shop"))["spec"]["replicas"] == 3

        async def replica_sets() -> list[Any]:
            return (await tenant.list(REPLICA_SETS, namespace="shop")).items

        await platform.eventually(replica_sets)
    assert platform.instance("routed")["server"] == status["endpoint"]
