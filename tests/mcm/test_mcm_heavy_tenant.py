"""A control plane with far more objects than its neighbours, on real API servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kplane.mcm.instance.memory import pss_by_pid
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES

from .control_planes import works

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("mcm_heavy_tenant"),
    pytest.mark.timeout(300),
]

Eventually = Callable[..., Any]

CONFIG_MAPS_OF_A_MEGABYTE = 40


@pytest.mark.timeout(420)
async def test_forty_mb_of_config_maps_affect_only_their_own_instance(
    mcm: Any, fleet: Any, tenants: Any, eventually: Eventually
) -> None:
    """kube-controller-manager caches whole ConfigMaps, so the instance of this tenant exceeds a low memory limit."""
    namespace = f"heavy-{uuid.uuid4().hex[:8]}"

    async def cluster(stem: str, accept: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        summary: dict[str, Any] = await eventually(
            lambda: asyncio.to_thread(lambda: mcm.clusters().get(fleet.name(stem), {})),
            lambda found: found and accept(found),
        )
        return summary

    async with (
        Client(tenants["one"].config, field_manager="kplane") as one,
        Client(tenants["two"].config, field_manager="kplane") as two,
    ):
        await one.create(NAMESPACES, {"metadata": {"name": namespace}})
        for number in range(CONFIG_MAPS_OF_A_MEGABYTE):
            body = {"metadata": {"name": f"c{number}"}, "data": {"a": f"{number:04}" * 250_000}}
            await one.create(CONFIG_MAPS, body, namespace=namespace)
        try:
            # With little memory, the heavy instance is ended repeatedly, after longer and longer times.
            mcm.start("--instance-memory-mib=64")
            for stem, tenant in (("light", "two"), ("heavy", "one")):
                await fleet.register(
                    stem, tenants[tenant].controllers_secret(), server=tenants[tenant].server, profile="Core"
                )
            light = await cluster("light", lambda found: found["state"] == "Ready")
            heavy = await cluster("heavy", lambda found: found["exits"].get("OutOfMemory"))
            assert "MiB of memory, and may take 64 MiB" in heavy["lastError"]
            await works(two, eventually)
            after = await cluster("light", bool)
            assert (after["state"], after["pid"], after["restarts"]) == ("Ready", light["pid"], light["restarts"])
            # mcm itself caches no objects of a tenant.
            assert pss_by_pid([mcm.process.pid])[mcm.process.pid] < 100 << 20

            # The default limit is enough for the heavy instance.
            assert await asyncio.to_thread(mcm.end) == 0
            mcm.start()
            heavy = await cluster("heavy", lambda found: found["state"] == "Ready")
            await works(one, eventually)
            pss_mib = await eventually(lambda: pss_by_pid([heavy["pid"]])[heavy["pid"]] >> 20, lambda mib: mib > 64)
            assert pss_mib < 512
        finally:
            # The instance ends with this test, and other tests use this control plane, so the test deletes the objects.
            for number in range(CONFIG_MAPS_OF_A_MEGABYTE):
                await one.delete(CONFIG_MAPS, f"c{number}", namespace=namespace)
            await one.delete(NAMESPACES, namespace)
