"""Requests whose reconciler asks for a cluster that the fleet does not have yet."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kplane.provider import ClusterNotFound, Manager, Request, controller
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.awaited import AwaitedClusters
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.sources import Channel
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.serving.metrics import ManagerMetrics, render_families
from kplane.provider.testing import FakeCluster, SteeredLoop
from kplane.provider.testing import eventually as in_the_end

HOUR = 3600.0


class Asking:
    """A reconciler that asks for cluster `b` in each other cluster."""

    def __init__(self, manager):
        self.manager = manager
        self.asked = []

    async def reconcile(self, request):
        self.asked.append(request)
        if request.cluster != "b":
            self.manager.get_cluster("b")


async def test_request_is_repeated_when_missing_cluster_joins(manager, fake_cluster, eventually, fleet):
    asking = Asking(manager)
    built = controller(manager).for_(CONFIG_MAPS).build(asking.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        await eventually(lambda: built.awaiting, lambda count: count == 1)
        text = render_families(ManagerMetrics(manager).collect()).decode()
        assert 'multicluster_parked_requests{controller="configmap",reason="missing"} 1.0' in text
        assert (built.stats.dropped, len(asking.asked)) == ({}, 1)
        await given.add_or_replace(fake_cluster("b"))
        await eventually(lambda: built.stats.reconciles["success"], lambda count: count == 1)
        assert asking.asked == [Request("a", "ns", "x")] * 2
        assert (built.awaiting, built.queue.idle) == (0, True)


async def test_request_is_dropped_when_its_own_cluster_is_unknown(manager, fake_cluster, eventually, fleet):
    channel, asking = Channel(), Asking(manager)
    built = controller(manager).named("x").watches_raw(channel).build(asking.reconcile)
    async with fleet(manager):
        channel.put(Request("nowhere", "ns", "x"))
        await eventually(lambda: built.stats.dropped, lambda dropped: dropped == {"not_found": 1})
        assert (built.awaiting, built.queue.idle) == (0, True)


async def test_waiting_request_is_dropped_when_its_own_cluster_leaves(manager, fake_cluster, eventually, fleet):
    asking = Asking(manager)
    built = controller(manager).for_(CONFIG_MAPS).build(asking.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        await eventually(lambda: built.awaiting, lambda count: count == 1)
        await given.remove("a")
        assert (built.awaiting, built.queue.idle) == (0, True)
        await given.add_or_replace(fake_cluster("b"))
        await eventually(lambda: built.clusters, lambda names: names == ["b"])
        assert len(asking.asked) == 1


async def test_error_without_a_name_is_retried_while_own_cluster_is_known(
    manager, work, fake_cluster, eventually, fleet
):
    backoff = ItemBackoff(initial_seconds=0.001, maximum_seconds=0.001)
    built = controller(manager).for_(CONFIG_MAPS).with_options(rate_limiter=backoff).build(work.reconcile)
    work.answers["x"] = ClusterNotFound("there is no such thing")
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        await eventually(lambda: built.stats.reconciles["error"], lambda count: count >= 2)
        assert built.stats.dropped == {}


class OnlyA:
    """A coordinator that owns cluster `a`, and leaves other clusters to other processes."""

    async def run(self, target):
        while True:
            await target.wait_changed()
            target.allow("a")

    def may_work(self, cluster):
        return cluster == "a"

    def grace_seconds(self, cluster):
        return None

    def require_read(self, cluster):
        pass

    def require_write(self, cluster):
        return None


async def test_request_is_repeated_if_another_process_has_joined_cluster(
    fake_cluster, eventually, fleet, given, monkeypatch
):
    monkeypatch.setattr("kplane.provider.controllers.multicluster._SWEEP_SECONDS", 0.01)
    manager = Manager(None, given(), coordinator=OnlyA(), name="test")
    asking = Asking(manager)
    built = controller(manager).for_(CONFIG_MAPS).build(asking.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        await eventually(lambda: built.awaiting, lambda count: count == 1)
        await given.add_or_replace(fake_cluster("b"))
        await eventually(lambda: built.stats.reconciles["success"], lambda count: count == 1)
        assert built.clusters == ["a"]


def test_request_is_retried_when_missing_cluster_never_joins():
    async def scenario():
        loop, fleet, times = asyncio.get_running_loop(), ClustersProvider(), []
        manager = Manager(None, fleet, name="test")

        async def reconcile(request):
            times.append(loop.time())
            if len(times) < 5:
                # The fleet of the manager never gets such a cluster.
                raise ClusterNotFound("there is no cluster 'b'", cluster="b")

        built = controller(manager).for_("v1/ConfigMap").build(reconcile)
        async with manager:
            cluster = FakeCluster("a")
            await fleet.add(cluster)
            await cluster.client.create("v1/ConfigMap", {"metadata": {"name": "x", "namespace": "default"}})
            await in_the_end(lambda: len(times) == 5, timeout_seconds=HOUR)
            await in_the_end(lambda: built.awaiting == 0)
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        delays = runner.run(scenario())
    for delay, most in zip(delays, (60, 120, 240, 480), strict=True):
        assert most / 2 <= delay <= most * 1.01


async def test_full_memory_keeps_requests_waiting_for_their_delay():
    awaited = AwaitedClusters("x", limit=2, uniform=lambda _, most: most)
    requests = [Request("a", "ns", str(number)) for number in range(3)]
    assert [awaited.wait(request, "b") for request in requests] == [60.0] * 3
    assert len(awaited) == 2
    assert [*awaited.join("b")] == requests[:2]
    assert (len(awaited), awaited.clusters) == (0, ())


async def test_request_delay_restarts_when_it_awaits_another_cluster():
    awaited = AwaitedClusters("x", uniform=lambda _, most: most)
    request = Request("a", "ns", "x")
    assert [awaited.wait(request, missing) for missing in ("b", "b", "c")] == [60.0, 120.0, 60.0]
    assert awaited.clusters == ("c",)
    awaited.forget(request)
    assert awaited.clusters == ()


@pytest.mark.parametrize("cluster", ["a", "b"])
async def test_drop_forgets_only_requests_of_the_cluster(cluster):
    awaited = AwaitedClusters("x")
    for name in ("a", "b"):
        awaited.wait(Request(name, "ns", "x"), "c")
    awaited.drop(cluster)
    assert [request.cluster for request in awaited.join("c")] == [{"a": "b", "b": "a"}[cluster]]
