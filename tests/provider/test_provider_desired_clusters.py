"""Desired clusters against a fleet that refuses or delays single names."""

from __future__ import annotations

import asyncio

from kplane.provider import Cluster, ClusterConfig, ProviderError
from kplane.provider.providers._support.desired import DesiredClusters


def cluster(name, *, port=1):
    return Cluster(name, config=ClusterConfig(f"https://127.0.0.1:{port}"))


class Fleet:
    """Records the calls. Names in `held` wait, names in `refused` fail the given number of times."""

    def __init__(self, *names):
        self.clusters = dict.fromkeys(names)
        self.log = []
        self.held = {}
        self.refused = {}

    async def add_or_replace(self, cluster):
        await self._pass(cluster.name)
        self.clusters[cluster.name] = cluster
        self.log.append(("add", cluster.name))

    async def remove(self, name):
        await self._pass(name)
        self.clusters.pop(name, None)
        self.log.append(("remove", name))

    async def _pass(self, name):
        if name in self.held:
            await self.held[name].wait()
        if self.refused.get(name, 0) > 0:
            self.refused[name] -= 1
            raise ProviderError("not now")

    def names(self):
        return sorted(self.clusters)


async def test_waiting_or_refused_cluster_does_not_delay_others(eventually, caplog):
    fleet = Fleet()
    fleet.held["slow"] = asyncio.Event()
    fleet.refused["bad"] = 1
    async with asyncio.TaskGroup() as tasks:
        roster = DesiredClusters(fleet, tasks, what="test cluster")
        roster.want_only([cluster("slow"), cluster("bad"), cluster("good")])
        await eventually(lambda: fleet.log, lambda log: log == [("add", "good"), ("add", "bad")])
        assert "failed to update test cluster bad: " in caplog.text
        fleet.held["slow"].set()
    assert fleet.names() == ["bad", "good", "slow"]


async def test_only_latest_wanted_cluster_is_added(eventually):
    fleet = Fleet()
    fleet.held["a"] = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        roster = DesiredClusters(fleet, tasks, what="x")
        first, last = cluster("a", port=1), cluster("a", port=3)
        roster.want(first)
        await eventually(lambda: len(roster._changed))
        roster.want(cluster("a", port=2))
        roster.drop("a")
        roster.want(last)
        fleet.held["a"].set()
    assert fleet.clusters["a"] is last
    assert len(fleet.log) <= 2


async def test_unchanged_cluster_is_not_added_again():
    fleet = Fleet()
    async with asyncio.TaskGroup() as tasks:
        roster = DesiredClusters(fleet, tasks, what="x")
        roster.want(cluster("a"))
    async with asyncio.TaskGroup() as tasks:
        roster._tasks = tasks
        roster.want(cluster("a"))
        roster.drop("unknown")
    assert fleet.log == [("add", "a")]


async def test_cluster_of_earlier_run_is_removed():
    fleet = Fleet("stranger", "kept")
    async with asyncio.TaskGroup() as tasks:
        DesiredClusters(fleet, tasks, what="x").want_only([cluster("kept")])
    assert fleet.names() == ["kept"]
    assert ("remove", "stranger") in fleet.log


async def test_drop_during_refused_add_skips_retry_delay(eventually):
    fleet = Fleet()
    fleet.refused["a"] = 1000
    async with asyncio.TaskGroup() as tasks:
        roster = DesiredClusters(fleet, tasks, what="x")
        for _ in range(3):
            roster.want(cluster("a"))
            await eventually(lambda: fleet.refused["a"] < 1000)
        fleet.refused["a"] = 0
        # The removal does not wait for the retry delay.
        roster.drop("a")
    assert fleet.log == [("remove", "a")]
