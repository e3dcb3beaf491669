"""The manager: a provider that may fail, and an end at which nothing is left."""

from __future__ import annotations

import asyncio

import pytest

from provider import Cluster, ClusterConfig, ClusterNotFound, Manager, ProviderError


def cluster(name):
    return Cluster(name, config=ClusterConfig("https://127.0.0.1:1"))


class Fixed:
    """A provider of these clusters that fails some times before it tells the rest."""

    name = "fixed"

    def __init__(self, *names, failures=0):
        self.names, self.failures, self.runs = names, failures, 0

    async def run(self, clusters):
        self.runs += 1
        await clusters.add_or_replace(cluster(self.names[0]))
        if self.runs <= self.failures:
            raise ValueError("odd")
        for name in self.names[1:]:
            await clusters.add_or_replace(cluster(name))


class Aware:
    def __init__(self):
        self.log = []

    async def engage(self, engagement):
        name = engagement.cluster.name
        self.log.append(("open", name))

        async def close():
            await asyncio.sleep(0.01)
            self.log.append(("close", name))

        engagement.on_close(close)
        engagement.spawn(asyncio.sleep(3600), name="work")


async def test_engages_what_the_provider_tells_and_closes_it_at_the_end(eventually):
    early, late = Aware(), Aware()
    manager = Manager(None, Fixed("a", "b"), awares=[early])
    stop = asyncio.Event()
    running = asyncio.create_task(manager.run(stop))
    await eventually(manager.cluster_names, lambda names: names == ["a", "b"])
    manager.add(late)
    await eventually(lambda: sorted(late.log), lambda log: log == [("open", "a"), ("open", "b")])
    assert manager.get_cluster("a").name == "a"
    stop.set()
    await asyncio.wait_for(running, 5)
    for aware in (early, late):
        assert sorted(aware.log) == [("close", "a"), ("close", "b"), ("open", "a"), ("open", "b")]
    with pytest.raises(ClusterNotFound):
        manager.get_cluster("a")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(ProviderError, match="runs once"):
        await manager.run(stop)


async def test_a_provider_that_fails_is_run_again_and_engaged_clusters_stay(eventually):
    aware = Aware()
    async with Manager(None, Fixed("a", "b", failures=1), awares=[aware]) as manager:
        await eventually(manager.cluster_names, lambda names: names == ["a", "b"])
        await eventually(lambda: aware.log, lambda log: ("open", "b") in log)
        assert aware.log == [("open", "a"), ("open", "b")]


async def test_a_manager_that_is_cancelled_closes_what_is_engaged(eventually):
    aware = Aware()
    running = asyncio.create_task(Manager(None, Fixed("a"), awares=[aware]).run(asyncio.Event()))
    await eventually(lambda: aware.log)
    running.cancel()
    await asyncio.wait([running])
    assert aware.log == [("open", "a"), ("close", "a")]
