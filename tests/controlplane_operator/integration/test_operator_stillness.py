"""A restarted operator writes no unchanged Secrets and statuses, of adopted control planes and with certificates."""

from __future__ import annotations

import base64
import json
from typing import Any

import aiohttp
import pytest

from kplane.api.names import ALLOW_ENDPOINT_LABEL
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS
from kplane.controlplane_operator.shared_etcd import metering
from kplane.provider import ClusterConfig
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

_NAMES = ("still-adopted", "still-x509")


async def make(field: Any) -> None:
    config = ClusterConfig.load(field.handle.admin_kubeconfig)
    kubeconfig = base64.b64encode(json.dumps(config.to_kubeconfig()).encode()).decode()
    metadata = {"name": "still-adopted", "namespace": "default", "labels": {ALLOW_ENDPOINT_LABEL: "true"}}
    await field.client.apply(SECRETS, {"metadata": metadata, "data": {"kubeconfig": kubeconfig}}, force=True)
    reference = {"name": "still-adopted", "namespace": "default"}
    await field.create("ControlPlaneEndpoint", "still-adopted", endpoint=config.server, credentialsSecretRef=reference)
    # The server has no paths of tenants, so the control plane adopts all of it in mode Dedicated.
    await field.create("ControlPlane", "still-adopted", mode="Dedicated", endpointRef={"name": "still-adopted"})
    await field.create("ControlPlaneClass", "still-x509", deletionPolicy="Destroy", auth={"model": "x509"})
    await field.create("ControlPlane", "still-x509", classRef={"name": "still-x509"})
    for name in _NAMES:
        await field.becomes("ControlPlane", name, "Reconciled")


async def versions(field: Any) -> dict[str, str]:
    result = {}
    for name in _NAMES:
        result[name] = (await field.get("ControlPlane", name))["metadata"]["resourceVersion"]
        for item in (await field.client.list(SECRETS, namespace=f"kplane-cp-{name}")).items:
            result[f"{name}/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    return result


async def measured(field: Any) -> bool:
    return "storage" in (await field.get("ControlPlane", "still-x509"))["status"]


async def reconciled(url: str) -> float:
    """Return the number of finished reconciles of control planes, or zero while a reconcile is queued or running."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    samples = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
    busy = samples['controller_runtime_active_workers{controller="controlplane"}']
    finished = samples['controller_runtime_reconcile_time_seconds_count{controller="controlplane"}']
    return 0.0 if busy or samples['workqueue_depth{controller="controlplane",name="controlplane"}'] else finished


async def test_restarted_operator_does_not_write_unchanged_objects(
    mortal_field: Any, eventually: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The operator measures the storage all the time, with slightly different results.
    monkeypatch.setattr(metering, "_LOOK_SECONDS", 0.1)
    monkeypatch.setattr(metering, "_PERIOD_SECONDS", 0.0)
    field, operating = mortal_field
    async with operating():
        await make(field)
        await eventually(lambda: measured(field))
        for name in _NAMES:
            await field.becomes("ControlPlaneEndpoint", name, "Reconciled")
        before = await field.settles(lambda: versions(field))
        assert len(before) >= 2 + 2 + 4
    # Another operator reconciles all objects anew.
    async with operating() as url:
        count = await eventually(lambda: reconciled(url), lambda ended: ended >= len(_NAMES))
        for name in _NAMES:
            await field.client.patch(NAMESPACES, f"kplane-cp-{name}", {"metadata": {"labels": {"x": "y"}}})
        labels = {"metadata": {"labels": {"x": "y"}}}
        await field.client.patch(CONTROL_PLANE_ENDPOINTS, "still-adopted", labels)
        await eventually(lambda: reconciled(url), lambda ended: ended >= count + len(_NAMES))
        assert await versions(field) == before
