"""Dispatch of requests: reconciled, parked or dropped."""

from __future__ import annotations

import asyncio

from kplane.provider import ClusterNotFound, ClusterNotReady, Manager, Request
from kplane.provider.aio.overflow import unanswered
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import controller
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.sources import Channel
from kplane.provider.errors import ClusterNotOwned


async def test_cluster_not_found_is_dropped_unless_retries_are_on(manager, work, eventually, new_work):
    """Criterion 28: ClusterNotFound from a reconciler: no retry, no error; with the wrapper off: retried."""
    channel, tolerant, strict = Channel(), new_work(), new_work()
    for each in (tolerant, strict):
        each.answers["x"] = ClusterNotFound("there is no cluster 'a'")
    one = controller(manager).named("one").watches_raw(channel).build(tolerant.reconcile)
    two = controller(manager).named("two").watches_raw(channel)
    two = two.with_options(
        retry_cluster_not_found=True, rate_limiter=ItemBackoff(initial_seconds=0.001, maximum_seconds=0.001)
    ).build(strict.reconcile)
    async with manager:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        channel.put(Request("a", "ns", "x"))
        await eventually(lambda: len(strict.asked), lambda count: count >= 3)
        await eventually(lambda: one.stats.reconciles, lambda counts: counts == {"success": 1})
        assert len(tolerant.asked) == 1
        assert two.stats.reconciles["error"] >= 2


async def test_cluster_removed_during_reconcile_is_no_failure(fake_cluster, eventually, fleet, given, caplog):
    """Criterion 28: the cluster goes while it is worked on: its reconcile ends with no error and no retry."""
    manager, seen, gate = Manager(None, given(), name="test"), [], asyncio.Event()

    async def reconcile(request):
        seen.append(("begins", manager.get_cluster(request.cluster).name))
        try:
            await gate.wait()
            manager.get_cluster(request.cluster)
        except ClusterNotFound:
            seen.append(("not found", request.cluster))
            raise

    built = controller(manager).for_(CONFIG_MAPS).with_options(workers=2, grace_seconds=10).build(reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        await eventually(lambda: seen, lambda found: found == [("begins", "a")])
        removing = asyncio.create_task(given.remove("a"))
        await eventually(lambda: manager.cluster_names(), lambda names: names == [])
        assert not removing.done()
        gate.set()
        await asyncio.wait_for(removing, 60)
        assert seen == [("begins", "a"), ("not found", "a")]
        assert built.stats.reconciles["error"] == 0
        assert built.stats.dropped["not_found"] == 1
        assert (built.queue.idle, built.under_way, built.queue.depths()) == (True, {}, {})
        # Requests of other clusters continue, and so do requests of a later cluster of that name.
        again = fake_cluster("a")
        await given.add_or_replace(again)
        again.maps.put("y")
        await eventually(lambda: seen[2:], lambda found: found == [("begins", "a")])
    assert "failed" not in caplog.text


async def test_flood_of_a_cluster_delays_others_by_a_reconcile_at_most(manager, work, fake_cluster, eventually, fleet):
    """Criterion 70: after 10,000 items of A, the first item of B starts in the next free worker slot."""
    built = controller(manager).for_(CONFIG_MAPS).with_options(workers=1).build(work.reconcile)
    work.gates["100"] = asyncio.Event()
    async with fleet(manager) as given:
        flooded, other = fake_cluster("a"), fake_cluster("b")
        for member in (flooded, other):
            await given.add_or_replace(member)
        await eventually(lambda: len(built.clusters), lambda count: count == 2)
        for number in range(10_000):
            built.queue.add(Request("a", "ns", str(number)))
        await eventually(lambda: work.ended or work.names("a")[-1:] == ["100"])
        other.maps.put("first")
        before = len(work.asked)
        work.gates["100"].set()
        await eventually(lambda: work.names("b"))
        assert work.asked[before] == Request("b", "ns", "first")
        await eventually(lambda: built.queue.idle)
    assert len(work.asked) == 10_001


class Later:
    """A coordinator that allows work on a cluster once the test calls `workplace.allow`."""

    def __init__(self):
        self.workplace = None
        self.mine = lambda cluster: True
        self.grace = None

    async def run(self, workplace):
        self.workplace = workplace
        await asyncio.Event().wait()

    def may_work(self, cluster):
        return self.mine(cluster)

    def grace_seconds(self, cluster):
        return self.grace

    def require_read(self, cluster):
        pass

    def require_write(self, cluster):
        pass


async def test_request_is_parked_until_its_cluster_is_ready(work, fake_cluster, eventually, fleet, given):
    """Criterion 71: a request for a known but not ready cluster is parked and runs on engagement, not dropped."""
    coordinator, channel = Later(), Channel()
    manager = Manager(None, given(), coordinator=coordinator, name="test")
    built = controller(manager).named("x").watches_raw(channel).build(work.reconcile)
    async with fleet(manager) as given:
        await given.add_or_replace(fake_cluster("a"))
        for name in ("one", "two", "one"):
            channel.put(Request("a", "ns", name))
        channel.put(Request("b", "ns", "of a cluster that nobody knows"))
        await eventually(lambda: (built.queue.depth("a"), work.names("b")), lambda seen: seen[0] == 2 and seen[1])
        assert (built.queue.parked(), work.names("a")) == (["a"], [])
        coordinator.workplace.allow("a")
        await eventually(lambda: work.names("a"), lambda names: sorted(names) == ["one", "two"])
        assert built.queue.parked() == []


async def test_reconcile_ends_within_the_grace_of_the_coordinator(work, fake_cluster, eventually, fleet, given):
    """Criterion 75: a reconcile ends before its fence expires, even if the grace of the controller is longer."""
    coordinator, channel = Later(), Channel()
    manager = Manager(None, given(), coordinator=coordinator, name="test")
    controller(manager).named("x").watches_raw(channel).with_options(grace_seconds=60).build(work.reconcile)
    work.gates["stuck"] = asyncio.Event()
    async with fleet(manager) as given:
        await given.add_or_replace(fake_cluster("a"))
        coordinator.workplace.allow("a")
        channel.put(Request("a", "ns", "stuck"))
        await eventually(lambda: work.asked)
        coordinator.grace = 0.05
        async with asyncio.timeout(60):
            await coordinator.workplace.withdraw("a")
        assert work.ended == [Request("a", "ns", "stuck")]


async def test_parked_request_is_dropped_when_its_cluster_leaves(
    work, fake_cluster, eventually, monkeypatch, fleet, given
):
    monkeypatch.setattr("kplane.provider.controllers.multicluster._SWEEP_SECONDS", 0.01)
    coordinator, channel = Later(), Channel()
    manager = Manager(None, given(), coordinator=coordinator, name="test")
    built = controller(manager).named("x").watches_raw(channel).build(work.reconcile)
    async with fleet(manager) as given:
        for name in ("a", "b"):
            await given.add_or_replace(fake_cluster(name))
            channel.put(Request(name, "ns", "x"))
        await eventually(lambda: sorted(built.queue.parked()), lambda names: names == ["a", "b"])
        await given.remove("a")
        await eventually(lambda: built.queue.parked(), lambda names: names == ["b"])
        coordinator.mine = lambda cluster: False
        monkeypatch.setattr("kplane.provider.controllers.multicluster._UNDECIDED_SECONDS", 0.01)
        await eventually(lambda: built.queue.idle)
        assert built.stats.dropped == {"gone": 1, "not_owned": 1}
        assert work.asked == []


async def test_request_of_an_unowned_cluster_waits_for_its_takeover(
    work, fake_cluster, eventually, monkeypatch, fleet, given
):
    """The queue has to keep these requests: no informer repeats the requests of a raw source."""
    monkeypatch.setattr("kplane.provider.controllers.multicluster._SWEEP_SECONDS", 0.01)
    coordinator, channel = Later(), Channel()
    coordinator.mine = lambda cluster: False
    manager = Manager(None, given(), coordinator=coordinator, name="test")
    built = controller(manager).named("x").watches_raw(channel).build(work.reconcile)
    async with fleet(manager) as given:
        await given.add_or_replace(fake_cluster("a"))
        channel.put(Request("a", "ns", "early"))
        await eventually(lambda: built.queue.parked(), lambda names: names == ["a"])
        coordinator.mine = lambda cluster: True
        coordinator.workplace.allow("a")
        await eventually(lambda: work.asked, lambda asked: asked == [Request("a", "ns", "early")])
        assert built.stats.dropped == {}


async def test_reconcile_starts_only_on_owned_clusters(work, fake_cluster, eventually, monkeypatch, fleet, given):
    """Criterion 61: dispatch checks ownership. Requests of another peer are not begun; own requests are not lost."""
    monkeypatch.setattr("kplane.provider.controllers.multicluster._SWEEP_SECONDS", 0.01)
    coordinator = Later()
    manager = Manager(None, given(), coordinator=coordinator, name="test")
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        coordinator.workplace.allow("a")
        await eventually(lambda: built.clusters)
        coordinator.mine = lambda name: False
        for name in ("x", "y"):
            cluster.maps.put(name)
        built.queue.add(Request("of somebody else", "ns", "x"))
        await eventually(lambda: built.stats.dropped, lambda dropped: dropped == {"not_owned": 1})
        await eventually(lambda: built.under_way, lambda under_way: under_way == {})
        assert (work.asked, built.queue.depth("a")) == ([], 2)
        # The engagement has not ended, so no informer would repeat these objects.
        coordinator.mine = lambda name: True
        await eventually(lambda: sorted(work.names("a")), lambda names: names == ["x", "y"])


async def test_not_owned_error_parks_the_request_after_lost_ownership(work, fake_cluster, eventually, fleet, given):
    coordinator = Later()
    manager = Manager(None, given(), coordinator=coordinator, name="test")

    async def reconcile(request):
        await work.reconcile(request)
        coordinator.mine = lambda cluster: request.name != "ours no more"
        raise ClusterNotOwned("no")

    built = controller(manager).for_(CONFIG_MAPS).with_options(rate_limiter=ItemBackoff(initial_seconds=60))
    built = built.build(reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        coordinator.workplace.allow("a")
        cluster.maps.put("asks for another")
        await eventually(lambda: built.stats.reconciles, lambda counts: counts == {"error": 1})
        cluster.maps.put("ours no more")
        await eventually(lambda: built.queue.parked(), lambda names: names == ["a"])
        assert built.queue.depth("a") == 1
        assert built.stats.reconciles == {"error": 1}


async def test_cluster_not_ready_is_retried_without_failure(manager, work, fake_cluster, eventually, fleet):
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    work.answers["x"] = ClusterNotReady("another cluster is being engaged")
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        await eventually(lambda: len(work.asked), lambda count: count >= 3)
        work.answers["x"] = None
        await eventually(lambda: built.queue.idle)
        assert built.stats.reconciles == {"requeue": len(work.asked) - 1, "success": 1}


async def test_silent_clusters_occupy_no_worker(manager, fake_cluster, eventually, fleet):
    """Criterion 63: clusters with silent servers do not delay the reconciles of other clusters."""
    done, silence = [], asyncio.Event()

    async def reconcile(request):
        if request.cluster.startswith("silent"):
            with unanswered(patience_seconds=0.01):
                await silence.wait()
        done.append(request.cluster)

    built = controller(manager).for_(CONFIG_MAPS).with_options(workers=1).build(reconcile)
    async with fleet(manager) as given:
        for number in range(20):
            cluster = fake_cluster(f"silent-{number}")
            await given.add_or_replace(cluster)
            for name in range(5):
                cluster.maps.put(str(name))
        cluster = fake_cluster("good")
        await given.add_or_replace(cluster)
        await eventually(lambda: len(built.clusters), lambda count: count == 21)
        cluster.maps.put("x")
        await eventually(lambda: done, lambda names: names == ["good"])
        assert max(count for name, count in built.under_way.items()) == 1
        silence.set()
        await eventually(lambda: built.queue.idle)
    assert len(done) == 101
