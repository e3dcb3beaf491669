"""A controller whose kube-apiserver cannot be reached for a while."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from benchmarks.gate import Gate
from kplane.provider import Cluster, Manager, Request, controller
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import predicates
from kplane.provider.providers.clusters import ClustersProvider

pytestmark = pytest.mark.integration

REQUESTS = 30
OUTAGE_SECONDS = 30.0
TARGET_SECONDS = 5.0


@pytest.fixture
async def gate(client):
    async with Gate(client.config.server) as gate:
        yield gate


async def test_controller_reconciles_all_requests_soon_after_an_outage(gate, client, namespace, eventually):
    loop, done, failures = asyncio.get_running_loop(), {}, []
    cluster = Cluster("a", config=dataclasses.replace(client.config, server=gate.url))
    fleet = ClustersProvider()
    manager = Manager(None, fleet, workers=4, name="test")

    async def reconcile(request):
        try:
            await cluster.client.patch(
                CONFIG_MAPS, request.name, {"data": {"seen": "yes"}}, namespace=request.namespace
            )
        except Exception:
            failures.append(request)
            raise
        done[request] = loop.time()

    def ours(event):
        return event.namespace == namespace and event.name.startswith("of-test-")

    built = controller(manager).for_(CONFIG_MAPS, predicates(ours)).build(reconcile)
    requests = [Request("a", namespace, f"of-test-{number}") for number in range(REQUESTS)]
    for queued in requests:
        await client.create(CONFIG_MAPS, {"metadata": {"name": queued.name}}, namespace=namespace)
    async with manager:
        await fleet.add(cluster)
        await eventually(lambda: len(done), lambda count: count == REQUESTS)
        await eventually(lambda: built.queue.idle)
        await gate.close()
        done.clear()
        for queued in requests:
            built.queue.add(queued)
        await eventually(lambda: built.queue.suspended(), lambda names: names == ["a"])
        down = loop.time()
        await eventually(lambda: loop.time() - down, lambda seconds: seconds >= OUTAGE_SECONDS)
        assert done == {}
        back = loop.time()
        await gate.open()
        await eventually(lambda: len(done), lambda count: count == REQUESTS)
        assert max(done.values()) - back <= TARGET_SECONDS
        assert len(failures) <= 3 * REQUESTS
