"""Virtual time that passes at once: requeues, and processes that share clusters by Leases."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import time

import pytest

from kplane.provider import Conflict, Election, Leader, Lease, Manager, Result, Sharded, controller
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, SteeredLoop, eventually

MAPS = "v1/ConfigMap"
DAY = 24 * 3600.0
CLUSTERS = [f"cluster-{number}" for number in range(6)]


@pytest.fixture
def steered():
    """`steered(coroutine)` runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


def settings(name="settings"):
    return {"metadata": {"name": name, "namespace": "default"}}


async def made_at(cluster, name):
    found = await cluster.client.create(MAPS, settings(name))
    return dt.datetime.fromisoformat(found["metadata"]["creationTimestamp"])


def test_steered_loop_skips_a_day_of_requeues(steered):
    async def scenario():
        loop, fleet, one, seen = asyncio.get_running_loop(), ClustersProvider(), FakeCluster("one"), []
        manager = Manager(None, fleet, name="test")

        async def reconcile(request):
            seen.append(loop.time())
            return Result(requeue_after_seconds=3600)

        controller(manager).for_(MAPS).build(reconcile)
        async with manager:
            await fleet.add(one)
            first = await made_at(one, "settings")
            await asyncio.sleep(DAY + 60)
            second = await made_at(one, "other")
        return seen, second - first

    began = time.monotonic()
    seen, apart = steered(scenario())
    assert time.monotonic() - began < DAY / 1000
    hours = [later - earlier for earlier, later in itertools.pairwise(seen[:24])]
    assert len(seen) >= 24
    assert hours == pytest.approx([3600] * 23, rel=0.01)
    assert abs(apart.total_seconds() - DAY - 60) <= 1


def test_steered_loop_retries_errors_after_their_backoff(steered):
    async def scenario():
        loop, fleet, one, seen = asyncio.get_running_loop(), ClustersProvider(), FakeCluster("one"), []
        manager = Manager(None, fleet, name="test")

        async def reconcile(request):
            seen.append(loop.time())
            if len(seen) < 8:
                raise Conflict(409, "Conflict", "it has changed")

        controller(manager).for_(MAPS).build(reconcile)
        async with manager:
            await fleet.add(one)
            await one.client.create(MAPS, settings())
            await eventually(lambda: len(seen) == 8, timeout_seconds=600)
        return [later - earlier for earlier, later in itertools.pairwise(seen)]

    delays = steered(scenario())
    assert delays == sorted(delays)
    assert delays[-1] > 4 * delays[2]


def test_steered_loop_fires_timeouts_in_order(steered):
    async def scenario():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.sleep(DAY)
        return asyncio.get_running_loop().time()

    assert steered(scenario()) == pytest.approx(60)


def test_steered_loop_skips_no_time_while_a_thread_works(steered):
    async def scenario():
        loop = asyncio.get_running_loop()

        def ask_often():
            return sum(asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 1), loop).result() for _ in range(50))

        async with asyncio.timeout(30):
            return await asyncio.to_thread(ask_often)

    assert steered(scenario()) == 50


class Replica:
    """A process that reconciles its part of the clusters."""

    def __init__(self, hub, identity):
        self.client = hub.make_client()
        loop = asyncio.get_running_loop()
        self.coordinator = Sharded(
            self.client, identity=identity, shards=8, unused=lambda key: True, on_overrun=None, now=loop.time
        )
        self.fleet, self.busy = ClustersProvider(), {}
        self.manager = Manager(None, self.fleet, coordinator=self.coordinator, name="test")
        controller(self.manager).for_(MAPS).build(self.reconcile)

    async def reconcile(self, request):
        self.busy[request.cluster] = asyncio.get_running_loop().time()
        return Result(requeue_after_seconds=1)

    def works_on(self):
        """Return the clusters that the replica reconciled in the last seconds."""
        now = asyncio.get_running_loop().time()
        return {name for name, at in self.busy.items() if now - at < 3}


def test_clusters_of_a_killed_process_move_to_the_other(steered):
    timings = ShardTimings()

    async def scenario():
        loop = asyncio.get_running_loop()
        hub, one, two = FakeCluster("hub"), None, None
        one, two = Replica(hub, "one"), Replica(hub, "two")
        worlds = {replica: [FakeCluster(name) for name in CLUSTERS] for replica in (one, two)}
        async with one.manager, two.manager:
            for replica, clusters in worlds.items():
                for cluster in clusters:
                    await cluster.client.create(MAPS, settings())
                    await replica.fleet.add(cluster)

            def divided():
                parts = one.works_on(), two.works_on()
                return all(parts) and not parts[0] & parts[1] and parts[0] | parts[1] == set(CLUSTERS)

            await eventually(divided, timeout_seconds=120)
            await asyncio.sleep(600)
            assert divided()
            peers = set(one.coordinator.stats.peers)
            died = loop.time()
            await one.client.aclose()
            await eventually(lambda: two.works_on() == set(CLUSTERS), timeout_seconds=600)
            took = loop.time() - died
            assert not one.works_on()
        await hub.aclose()
        return peers, took

    peers, took = steered(scenario())
    assert peers == {"one", "two"}
    assert timings.duration_seconds - timings.renew_seconds < took < timings.duration_seconds + timings.probe_seconds


def test_killed_leader_is_replaced(steered):
    async def scenario():
        loop, hub = asyncio.get_running_loop(), FakeCluster("hub")

        def replica(identity):
            client = hub.make_client()
            lease = Lease(client, namespace="default", name="leader", identity=identity, now=loop.time)
            leader = Leader(Election(lease, on_overrun=None, now=loop.time))
            return client, leader, Manager(None, ClustersProvider(), coordinator=leader, name="test")

        first, second = replica("one"), replica("two")
        async with first[2]:
            await eventually(lambda: first[1].leading, timeout_seconds=60)
            async with second[2]:
                await asyncio.sleep(600)
                assert first[1].leading
                assert not second[1].leading
                await first[0].aclose()
                died = loop.time()
                await eventually(lambda: second[1].leading, timeout_seconds=60)
                assert not first[1].leading
                took = loop.time() - died
        await hub.aclose()
        return took

    assert 5 < steered(scenario()) < 15
