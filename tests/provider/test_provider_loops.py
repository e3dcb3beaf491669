"""Both event loops, with an alarm on every call that blocks them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid

import pytest
import uvloop
from blockbuster import blockbuster_ctx

from kplane.provider import Client, Cluster, ClusterConfig, Informer
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from kplane.provider.fleet.clusters import Clusters


class Mirroring:
    """An aware that mirrors the ConfigMaps of each cluster."""

    def __init__(self):
        self.mirrors = asyncio.Queue()
        self.seen = asyncio.Semaphore(0)

    async def engage(self, engagement):
        mirror = Informer(engagement.cluster.client, CONFIG_MAPS)
        self.mirrors.put_nowait(mirror)
        engagement.spawn(mirror.run(self.handle), name="mirror")

    def handle(self, event):
        if event.name == "seen":
            self.seen.release()


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


async def follow_a_fleet(config):
    name = f"loop-{uuid.uuid4().hex[:8]}"
    async with Client(config) as client:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        before = open_descriptors()
        aware = Mirroring()
        clusters = Clusters(awares=[aware])
        for number in range(5):
            await clusters.add_or_replace(Cluster(f"c{number}", config=config))
        async with asyncio.timeout(60):
            for _ in range(5):
                mirror = await aware.mirrors.get()
                await mirror.synced.wait()
            await client.create(CONFIG_MAPS, {"metadata": {"name": "seen"}}, namespace=name)
            for _ in range(5):
                await aware.seen.acquire()
        await clusters.aclose()
        assert open_descriptors() <= before
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.integration
@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_clusters_do_not_block_the_loop_and_leak_nothing(api_server, factory):
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=factory))
        blocking = stack.enter_context(blockbuster_ctx("provider"))
        # The test itself counts descriptors.
        blocking.functions["os.listdir"].deactivate()
        runner.run(follow_a_fleet(config))
