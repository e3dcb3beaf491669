"""Coordinators: the clusters on which awares work, without effect on lookups and other clusters."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import Cluster, ClusterConfig, Manager, ProviderError
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.cluster.context import cluster_context
from kplane.provider.coordination.basic import Basic
from kplane.provider.coordination.leader import Leader
from kplane.provider.errors import ClusterNotOwned
from kplane.provider.fleet.clusters import Clusters


def cluster(name="a", **attributes):
    return Cluster(name, config=ClusterConfig("https://127.0.0.1:1"), attributes=attributes)


class Working:
    """An aware that records the clusters it works on. Its close waits for `go`."""

    def __init__(self):
        self.live, self.begun = set(), []
        self.go = asyncio.Event()
        self.go.set()

    async def engage(self, engagement):
        name = engagement.cluster.name
        assert name not in self.live
        self.live.add(name)
        self.begun.append(name)
        engagement.on_close(lambda: self.end(name))
        engagement.spawn(asyncio.sleep(3600), name="work")

    async def end(self, name):
        await self.go.wait()
        self.live.discard(name)


class WorkingEverywhere(Working):
    """An aware that works on the local cluster, too."""

    async def engage_local(self, engagement):
        await self.engage(engagement)


class Providing:
    """A provider whose clusters the test names."""

    name = "test"

    def __init__(self, *names):
        self.names = names
        self.fleet = None

    async def run(self, fleet):
        self.fleet = fleet
        for name in self.names:
            await fleet.add_or_replace(cluster(name))
        await asyncio.Event().wait()


async def test_work_begins_when_allowed_and_withdraw_awaits_its_end(eventually):
    working = Working()
    clusters = Clusters(awares=[working], coordinated=True)
    await clusters.add_or_replace(cluster("a"))
    await clusters.add_or_replace(cluster("b"))
    assert clusters.get("a").name == "a"
    clusters.allow("a")
    clusters.allow("a")
    clusters.allow("unknown")
    await eventually(lambda: working.live == {"a"})

    working.go.clear()
    withdrawing = asyncio.create_task(clusters.withdraw("a"))
    await asyncio.sleep(0.01)
    assert not withdrawing.done()
    working.go.set()
    await withdrawing
    assert working.live == set()
    assert clusters.names() == ["a", "b"]

    clusters.allow("a")
    clusters.allow("b")
    await eventually(lambda: working.live == {"a", "b"})
    late = Working()
    clusters.add_aware(late)
    await eventually(lambda: late.live == {"a", "b"})
    await clusters.withdraw("b")
    await clusters.withdraw("b")
    assert working.live == late.live == {"a"}
    await clusters.aclose()
    assert working.live == late.live == set()


async def test_work_continues_for_replaced_but_not_for_readded_cluster(eventually):
    working = Working()
    clusters = Clusters(awares=[working], coordinated=True)
    await clusters.add_or_replace(cluster())
    clusters.allow("a")
    await eventually(lambda: working.begun == ["a"])
    await clusters.add_or_replace(cluster(profile="other"))
    await eventually(lambda: working.begun == ["a", "a"])
    await clusters.remove("a")
    await clusters.add_or_replace(cluster())
    assert clusters.names() == ["a"]
    assert working.live == set()
    await clusters.aclose()


class Odd(Cluster):
    """A cluster that cannot be compared with others."""

    def continues(self, previous):
        raise ValueError("what a tenant wrote cannot be read")


async def test_withdraw_ends_work_despite_failed_replacement(eventually):
    working = Working()
    clusters = Clusters(awares=[working], coordinated=True)
    odd = Odd("a", config=ClusterConfig("https://127.0.0.1:2"))
    await clusters.add_or_replace(cluster())
    clusters.allow("a")
    await eventually(lambda: working.live == {"a"})
    with pytest.raises(ValueError, match="cannot be read"):
        await clusters.add_or_replace(odd)
    await clusters.withdraw("a")
    assert working.live == set()
    await clusters.aclose()


async def test_work_allowed_again_while_ending_restarts(eventually):
    working = Working()
    clusters = Clusters(awares=[working], coordinated=True)
    await clusters.add_or_replace(cluster())
    clusters.allow("a")
    await eventually(lambda: working.live == {"a"})
    working.go.clear()
    withdrawing = asyncio.create_task(clusters.withdraw("a"))
    await asyncio.sleep(0)
    clusters.allow("a")
    working.go.set()
    await withdrawing
    await eventually(lambda: working.begun == ["a", "a"])
    assert working.live == {"a"}
    await clusters.aclose()


async def test_withdraw_that_timed_out_can_be_repeated(eventually):
    working = Working()
    clusters = Clusters(awares=[working], coordinated=True)
    await clusters.add_or_replace(cluster())
    clusters.allow("a")
    await eventually(lambda: working.live == {"a"})
    working.go.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await clusters.withdraw("a")
    working.go.set()
    await clusters.withdraw("a")
    assert working.live == set()
    clusters.allow("a")
    await eventually(lambda: working.live == {"a"})
    await clusters.aclose()


async def test_removal_of_cluster_keeps_work_on_others(eventually):
    """Criterion 64: upstream ends the work on other clusters, too (D3)."""
    working = Working()
    provider = Providing("a", "b", "c")
    async with Manager(None, provider, awares=[working], coordinator=Basic(), name="test") as manager:
        await eventually(lambda: working.live == {"a", "b", "c"})
        await provider.fleet.remove("a")
        assert working.live == {"b", "c"}
        assert manager.cluster_names() == ["b", "c"]
        await provider.fleet.add_or_replace(cluster("a"))
        await eventually(lambda: working.live == {"a", "b", "c"})
        assert working.begun == ["a", "b", "c", "a"]


async def test_local_cluster_is_engaged_only_by_awares_that_opt_in(eventually):
    plain, local = Working(), WorkingEverywhere()
    manager = Manager(ClusterConfig("https://127.0.0.1:1"), Providing("a"), awares=[plain, local], name="test")
    async with manager:
        await eventually(lambda: (plain.live, local.live) == ({"a"}, {"a", ""}))
        assert manager.cluster_names() == ["a"]
        assert manager.get_cluster("") is manager.local


class OneLease:
    """A Lease that the test gives and takes."""

    def __init__(self):
        self.held = False
        self.seconds_left = 7.0

    def __str__(self):
        return "Lease of the test"


class Voting:
    """An election that the test decides."""

    def __init__(self):
        self.lease = OneLease()
        self.won, self.lost = asyncio.Event(), asyncio.Event()

    async def run(self, work):
        await self.won.wait()
        self.lease.held = True
        working = asyncio.create_task(work())
        try:
            await self.lost.wait()
        finally:
            working.cancel()
            await asyncio.wait([working])
            self.lease.held = False


async def test_replica_without_lease_looks_up_clusters_and_does_no_work(eventually):
    """Criterion 72: each replica looks up clusters, the leader alone works on them."""
    working, voting = WorkingEverywhere(), Voting()
    leader = Leader(voting)
    config = ClusterConfig("https://127.0.0.1:1")
    async with Manager(config, Providing("a"), awares=[working], coordinator=leader, name="test") as manager:
        await eventually(lambda: manager.cluster_names() == ["a"])
        found = manager.get_cluster("a")
        assert found.client is manager.get_cluster("a").client
        assert not leader.may_work("a")
        leader.require_write("a")  # The write of a webhook.
        with cluster_context("a"), pytest.raises(ClusterNotOwned, match=r"^cluster 'a' .* does not lead"):
            leader.require_write("a")
        with cluster_context("a"), pytest.raises(ClusterNotOwned, match=r"^the local cluster .* does not lead"):
            leader.require_write("")
        assert working.live == set()

        voting.won.set()
        await eventually(lambda: working.live == {"a", ""})
        assert leader.may_work("a")
        with cluster_context("a"):
            leader.require_write("a")

        working.go.clear()
        voting.lost.set()
        await eventually(lambda: not leader.may_work("a"))
        with cluster_context("a"):
            assert leader.require_write("a") == 7.0  # A running reconcile may finish.
            assert leader.grace_seconds("a") == 6.0
            voting.lease.held = False
            with pytest.raises(ClusterNotOwned):
                leader.require_write("a")
        working.go.set()
        await eventually(lambda: working.live == set())
        assert manager.get_cluster("a") is found


class Refusing(Basic):
    """A coordinator that refuses each write."""

    def require_write(self, cluster):
        raise ClusterNotOwned(f"{cluster} is not ours")


async def test_client_older_than_its_fleet_is_fenced(eventually):
    early = cluster("a")
    client = early.client
    config = ClusterConfig("https://127.0.0.1:1")
    manager = Manager(config, provider := Providing(), coordinator=Refusing(), name="test")
    local = manager.local.client
    async with manager:
        await eventually(lambda: provider.fleet is not None)
        await provider.fleet.add_or_replace(early)
        assert manager.get_cluster("a").client is client
        for name, writer in (("a", client), ("", local)):
            with pytest.raises(ClusterNotOwned, match=f"^{name} is not ours"):
                await writer.create(CONFIG_MAPS, {"metadata": {"name": "x", "namespace": "default"}})


async def test_client_has_options_of_manager_and_latest_credentials(eventually):
    limits = AnswerLimits(answer_bytes=1000)
    async with Manager(None, provider := Providing(), limits=limits, timeout_seconds=7.0, name="test") as manager:
        await eventually(lambda: provider.fleet is not None)
        first, second = (
            Cluster("a", config=ClusterConfig("https://127.0.0.1:1", token=token)) for token in ("one", "two")
        )
        await provider.fleet.add_or_replace(first)
        await provider.fleet.add_or_replace(second)
        # The first Cluster object yields no client with its old token.
        assert first.client is manager.get_cluster("a").client
        assert first.client.config.token == "two"
        assert first.client.limits is limits
        assert first.client.timeout_seconds == 7.0


async def test_add_of_taken_name_is_refused():
    clusters = Clusters()
    await clusters.add(cluster())
    with pytest.raises(ProviderError, match="already: remove it first"):
        await clusters.add(cluster())
    await clusters.aclose()


async def test_second_index_function_of_a_field_is_refused():
    manager = Manager(None, Providing(), name="test")
    manager.index_field("v1/ConfigMap", "kind", lambda found: ["x"])
    with pytest.raises(ProviderError, match="already indexed by another function"):
        manager.index_field("v1/ConfigMap", "kind", lambda found: ["y"])
    manager.index_field("example.com/v1/Widget", "kind", lambda found: ["y"])
    with pytest.raises(ProviderError, match="'Widget' is not the name of a kind"):
        manager.index_field("Widget", "kind", lambda found: ["y"])


class WatchingTheHub(WorkingEverywhere):
    """An aware that watches the local cluster, too."""

    def __init__(self):
        super().__init__()
        self.watched = []

    async def watch_local(self, engagement):
        self.watched.append(engagement)


async def test_local_cluster_is_watched_without_work(eventually):
    early, late = WatchingTheHub(), WatchingTheHub()
    clusters = Clusters(awares=[early], coordinated=True)
    await clusters.add_or_replace(cluster(""))
    clusters.observe_local()
    clusters.add_aware(late)
    await eventually(lambda: len(early.watched) == len(late.watched) == 1)
    assert early.begun == []
    cache = clusters.get("").cache
    informer = cache.informer(CONFIG_MAPS)

    clusters.allow("")
    await eventually(lambda: early.live == late.live == {""})
    await clusters.withdraw("")
    assert early.live == set()
    # The informer of the watch keeps running.
    assert cache.informer(CONFIG_MAPS) is informer
    assert not early.watched[0].closing

    await clusters.ignore_local()
    assert early.watched[0].closed
    clusters.allow("")
    await eventually(lambda: early.live == {""})
    await clusters.withdraw("")
    assert cache.informer(CONFIG_MAPS) is not informer
    await clusters.aclose()


async def test_local_cluster_added_after_observe_local_is_watched(eventually):
    aware = WatchingTheHub()
    clusters = Clusters(awares=[aware], coordinated=True)
    clusters.observe_local()
    await clusters.add_or_replace(cluster(""))
    await eventually(lambda: len(aware.watched) == 1)
    await clusters.add_or_replace(cluster("", other="one"))
    await eventually(lambda: len(aware.watched) == 2)
    assert [engagement.closed for engagement in aware.watched] == [True, False]
    await clusters.aclose()


async def test_leader_keeps_lease_until_work_on_removed_cluster_ends(eventually):
    """The cluster left the fleet before the leader stopped, and its work is still ending."""
    working, voting = Working(), Voting()
    clusters = Clusters(awares=[working], coordinated=True)
    await clusters.add_or_replace(cluster("a"))
    leading = asyncio.create_task(Leader(voting).run(clusters))
    voting.won.set()
    await eventually(lambda: working.live == {"a"})
    working.go.clear()
    removing = asyncio.create_task(clusters.remove("a"))
    await eventually(lambda: clusters.names() == [])
    leading.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert voting.lease.held
    working.go.set()
    await asyncio.wait([leading, removing])
    assert working.live == set()
    assert not voting.lease.held
    await clusters.aclose()
