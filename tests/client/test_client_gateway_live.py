"""The Python client through a real gateway, which holds requests to control planes that sleep."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kplane.api.names import kubeconfig_secret_name, management_namespace
from kplane.binaries.programs import Binaries
from kplane.client import ControlPlanes, asleep, awake
from kplane.controlplane_operator.credentials.store import AUTHORITIES_SECRET
from kplane.embedded.cluster import ManagementCluster
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.issuing import sign_token
from kplane.provider import Client, ClusterConfig, Informer
from kplane.provider.access.exec_plugin import ExecPlugin
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.errors import Unauthorized
from tests.embedded.behind_gateway import gateway_cluster, secret

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_ON_DEMAND = {"deletionPolicy": "Destroy", "virtual": {"start": "OnDemand"}}
_PLUGIN = """
import json, pathlib, sys
runs, *tokens = sys.argv[1:]
count = len(pathlib.Path(runs).read_text()) if pathlib.Path(runs).exists() else 0
pathlib.Path(runs).write_text("." * (count + 1))
status = {"token": tokens[min(count, len(tokens) - 1)]}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""
"""Prints the first token in its first run, and the second token from then on. Counts its runs in a file."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(binaries: Binaries, namespaces_go_at_once: Callable[..., Any]) -> AsyncIterator[ManagementCluster]:
    async with gateway_cluster(binaries, namespaces_go_at_once) as cluster:
        yield cluster


@pytest_asyncio.fixture(loop_scope="module")
async def control_planes(cluster: ManagementCluster) -> AsyncIterator[ControlPlanes]:
    async with ControlPlanes.connect(ClusterConfig.load(cluster.handle.admin_kubeconfig)) as control_planes:
        yield control_planes


async def _user(config: ClusterConfig) -> str:
    """Return the user that the API server sees. Raises Unauthorized for refused credentials."""
    async with Client(config, field_manager="kplane") as tenant:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        review = await tenant.request("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", body=body)
    return str(review["status"]["userInfo"]["username"])


@pytest.mark.parametrize("style", ["Path", "HostName"])
async def test_tenant_wakes_sleeper_and_watches_through_gateway(
    cluster: ManagementCluster, control_planes: ControlPlanes, style: str
) -> None:
    name = f"by-{style.lower()}"
    await control_planes.create(name, spec=_ON_DEMAND | {"endpointStyle": style})
    await control_planes.wait(name, asleep)
    created: asyncio.Queue[str] = asyncio.Queue()
    async with control_planes.tenant(name) as tenant:
        if style == "Path":
            assert tenant.config.server == f"{cluster.handle.gateway_url}/clusters/{name}/control-plane"
        else:
            gateway = cluster.handle.gateway_url
            assert (tenant.config.server, tenant.config.tls_server_name) == (gateway, f"{name}.localhost")
        informer = Informer(tenant, CONFIG_MAPS, namespace="default")
        informer.add_handler(lambda event: created.put_nowait(event.object["metadata"]["name"]))
        informer.start()
        try:
            await informer.wait_synced()
            await tenant.create(CONFIG_MAPS, {"metadata": {"name": "made", "namespace": "default"}})
            async with asyncio.timeout(60):
                while await created.get() != "made":
                    pass
        finally:
            await informer.aclose()
    assert awake(await control_planes.get(name))
    await control_planes.delete(name, wait=True)


async def test_tenant_of_sleeper_gets_new_credentials_if_its_secret_is_lost(control_planes: ControlPlanes) -> None:
    await control_planes.create("forgotten", spec=_ON_DEMAND)
    await control_planes.wait("forgotten", asleep)
    await control_planes.ensure_awake("forgotten")
    await control_planes.sleep("forgotten", wait=True)
    lost = kubeconfig_secret_name("forgotten")
    await control_planes.client.delete(SECRETS, lost, namespace=management_namespace("forgotten"))
    async with control_planes.tenant("forgotten") as tenant:
        assert "/clusters/forgotten/" in tenant.config.server
        assert (await _user(tenant.config)).startswith("system:serviceaccount:")
    await control_planes.delete("forgotten", wait=True)


async def test_expired_token_is_refused_and_renewed_through_gateway(
    control_planes: ControlPlanes, eventually: Callable[..., Any], tmp_path: Path
) -> None:
    await control_planes.create("renewed", spec=_ON_DEMAND)
    await control_planes.wait("renewed", asleep)
    token = await control_planes.token("renewed", lifetime=timedelta(minutes=10))
    published = await control_planes.config("renewed")
    assert token != published.token
    user = await _user(dataclasses.replace(published, token=token))
    assert user == await _user(published)

    keys = await secret(control_planes.client, AUTHORITIES_SECRET, management_namespace("renewed"))
    _, _, namespace, account = user.split(":")
    expired = sign_token(
        TenantAuthorities.from_secret(keys).service_account_key,
        namespace=namespace,
        service_account=account,
        uid="0-0",
        lifetime=timedelta(hours=-1),
    ).token
    assert expired is not None
    with pytest.raises(Unauthorized):
        await _user(dataclasses.replace(published, token=expired))
    runs = tmp_path / "runs"
    plugin = ExecPlugin(sys.executable, ("-c", _PLUGIN, str(runs), expired, token))
    async with Client(dataclasses.replace(published, token=None, exec_plugin=plugin)) as tenant:
        # The client runs a plugin again after 10 s at the earliest, and shows the 401 until then.
        with pytest.raises(Unauthorized):
            await tenant.list(CONFIG_MAPS, namespace="kube-system")
        await eventually(lambda: tenant.list(CONFIG_MAPS, namespace="kube-system"))
        for _ in range(5):
            assert (await tenant.list(CONFIG_MAPS, namespace="kube-system")).items
    assert runs.read_text() == ".."
    await control_planes.delete("renewed", wait=True)
