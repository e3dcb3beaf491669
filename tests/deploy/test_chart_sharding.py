"""RBAC of mcm suffices to share a fleet by Leases, and excludes other Leases."""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kplane.embedded.handle import Handle
from kplane.mcm.placement.sharding import SHARDS
from kplane.mcm.settings import Settings
from kplane.provider import Client, ClusterConfig, Manager
from kplane.provider.client.resources import LEASES
from kplane.provider.errors import Forbidden

pytestmark = [pytest.mark.integration, pytest.mark.slow]

RBAC = {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
NAMESPACE = "kplane-system"


async def test_mcm_pod_acquires_and_releases_all_shards(
    chart: Any, api_server: Handle, eventually: Callable[..., Any]
) -> None:
    release = f"s{uuid.uuid4().hex[:6]}"
    rendered, account = chart.render(release=release), f"{release}-kplane-mcm"
    parts = [
        item for item in rendered.manifests if item["kind"] in RBAC and item["metadata"]["name"].startswith(account)
    ]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": parts})
    [container] = rendered.one("StatefulSet", account)["spec"]["template"]["spec"]["containers"]
    sharding = Settings.parse(container["args"]).sharding
    assert sharding is not None
    kube = api_server.kubectl
    await kube.run("apply", "--server-side", "-f", "-", stdin=listed)
    try:
        token = await kube.run("create", "token", account, f"--namespace={NAMESPACE}")
        server = ClusterConfig.load(api_server.admin_kubeconfig)
        config = ClusterConfig(server.server, ca_data=server.ca_data, token=token.strip())
        async with Client(config, field_manager="kplane") as client:
            coordinator = dataclasses.replace(sharding, identity=f"{account}-0", lease_seconds=10).coordinator(client)
            async with Manager(None, coordinator=coordinator, name="test"):
                await eventually(lambda: coordinator.stats.owned == SHARDS, timeout=60.0)
            assert coordinator.stats.released == SHARDS
            assert coordinator.stats.lost == 0
            names = {lease["metadata"]["name"] for lease in (await client.list(LEASES, namespace=NAMESPACE)).items}
            assert {name for name in names if name.startswith(f"{account}-peer-")} == set()
            foreign = ((f"{account}-peer-{account}-16", NAMESPACE), ("kplane-operator", "kube-system"))
            for name, namespace in foreign:
                with pytest.raises(Forbidden):
                    await client.get(LEASES, name, namespace=namespace)
    finally:
        await kube.run("delete", "-f", "-", "--wait=false", stdin=listed)
        selector = f"--selector=mcr.sigs.k8s.io/prefix={account}-shard"
        await kube.run("delete", "leases", selector, f"--namespace={NAMESPACE}", "--wait=false")
