"""Storage of a control plane in the shared etcd: status, metrics, and quota of the class."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.shared_etcd import metering
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_LEAST_CHANGE = 1 << 20
"""In bytes. The status omits smaller changes, so its size may be from between two deletions."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure the storage all the time instead of every ten minutes."""
    monkeypatch.setattr(metering, "_LOOK_SECONDS", 0.5)
    monkeypatch.setattr(metering, "_PERIOD_SECONDS", 0.0)


async def metrics(field: Any) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{field.url}/metrics") as answer:
        families = text_string_to_metric_families(await answer.text())
    return {
        family.name: sample.value
        for family in families
        for sample in family.samples
        if sample.labels.get("control_plane") == "hoarder"
    }


async def test_full_storage_quota_sets_condition_and_refuses_no_writes(own_field: Any) -> None:
    field = own_field
    await field.create("ControlPlaneClass", "small", virtual={"storage": {"quota": "2M"}}, deletionPolicy="Destroy")
    await field.create("ControlPlane", "hoarder", classRef={"name": "small"})
    await field.becomes("ControlPlane", "hoarder", "Reconciled")

    async def status() -> dict[str, Any]:
        value: dict[str, Any] = (await field.get("ControlPlane", "hoarder"))["status"]
        return value

    async def pressure() -> str:
        return str(await field.reason("ControlPlane", "hoarder", "StorageSufficient"))

    first = (await field.eventually(status, lambda found: "storage" in found))["storage"]
    assert first["quotaBytes"] == 2_000_000
    assert 100 < first["keys"] < 1000
    assert 50_000 < first["bytes"] < 1_000_000
    assert await pressure() == ""

    async with Client(await field.tenant("hoarder"), field_manager="kplane") as tenant:
        for number in range(3):
            body = {"metadata": {"name": f"big-{number}", "namespace": "default"}, "data": {"of": "x" * 850_000}}
            await tenant.create(CONFIG_MAPS, body)
            if number == 1:
                await field.eventually(pressure, lambda found: found == "NearStorageQuota")
        await field.eventually(pressure, lambda found: found == "StorageQuotaReached")
        current = await status()
        assert current["phase"] == "Ready"
        assert current["storage"]["bytes"] > 2_500_000
        samples = await metrics(field)
        assert samples["kplane_control_plane_storage_bytes"] > 2_500_000
        assert samples["kplane_control_plane_storage_quota_bytes"] == 2_000_000

        larger = {"spec": {"virtual": {"storage": {"quota": "1Gi"}}}}
        await field.client.patch(CONTROL_PLANE_CLASSES, "small", larger)
        await field.eventually(pressure, lambda found: found == "")
        for number in range(3):
            await tenant.delete(CONFIG_MAPS, f"big-{number}", namespace="default")

    await field.eventually(status, lambda found: found["storage"]["bytes"] < first["bytes"] + _LEAST_CHANGE)
    settled = await field.settles(status)
    assert settled["storage"]["quotaBytes"] == 1 << 30
