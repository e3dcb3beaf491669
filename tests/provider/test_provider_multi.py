"""Providers next to each other: names, members that come, fail and go, and members of members."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import Cluster, ClusterConfig, ClusterNotFound, Manager, ProviderError
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.providers.multi import MultiProvider
from kplane.provider.providers.single import SingleProvider


def cluster(name, *, port=1):
    return Cluster(name, config=ClusterConfig(f"https://127.0.0.1:{port}"))


class Failing:
    """A provider that adds a cluster and fails, some times."""

    name = "failing"

    def __init__(self, *, failures):
        self.failures, self.runs = failures, 0

    async def run(self, fleet):
        self.runs += 1
        await fleet.add_or_replace(cluster(f"c{self.runs}"))
        if self.runs <= self.failures:
            raise ValueError("odd")
        await asyncio.Event().wait()


class Slow:
    """An aware whose engagements close when `allowed` is set."""

    def __init__(self):
        self.allowed = asyncio.Event()
        self.begins = self.ends = 0

    async def engage(self, engagement):
        self.begins += 1

        async def end():
            self.ends += 1
            await self.allowed.wait()

        engagement.on_close(end)


async def test_clusters_of_equal_names_are_distinct_by_member(eventually):
    """Criterion 45: `cloud1#island` and `cloud2#island` are distinct; a provider added after start works."""
    first, second, multi = ClustersProvider(), ClustersProvider(), MultiProvider()
    await first.add(cluster("island", port=1))
    multi.add_provider("cloud1", first)
    async with Manager(None, multi, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["cloud1#island"])
        await second.add(cluster("island", port=2))
        multi.add_provider("cloud2", second)
        assert multi.provider_names() == ["cloud1", "cloud2"]
        assert multi.get_provider("cloud2") is second
        await eventually(manager.cluster_names, lambda names: names == ["cloud1#island", "cloud2#island"])
        one, two = manager.get_cluster("cloud1#island"), manager.get_cluster("cloud2#island")
        assert (one.config.server, two.config.server) == ("https://127.0.0.1:1", "https://127.0.0.1:2")
        assert one.came_from(first)
        assert one.came_from(multi)
        assert not one.came_from(second)

        await first.remove("island")
        assert manager.cluster_names() == ["cloud2#island"]


async def test_name_is_split_at_its_first_separator(eventually):
    inner, outer, leaf = MultiProvider(), MultiProvider(), ClustersProvider()
    await leaf.add(cluster("a#b"))
    inner.add_provider("region", leaf)
    outer.add_provider("cloud", inner)
    async with Manager(None, outer, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["cloud#region#a#b"])
        found = manager.get_cluster("cloud#region#a#b")
        assert all(found.came_from(provider) for provider in (leaf, inner, outer))
    assert outer.split("cloud#region#a#b") == ("cloud", "region#a#b")
    with pytest.raises(ProviderError, match="names no provider"):
        outer.split("cloud")


async def test_removed_member_removes_its_clusters(eventually):
    first, second, multi, slow = ClustersProvider(), ClustersProvider(), MultiProvider(), Slow()
    await first.add(cluster("a"))
    await second.add(cluster("a"))
    multi.add_provider("one", first)
    multi.add_provider("one-more", second)
    async with Manager(None, multi, awares=[slow], name="test") as manager:
        await eventually(manager.cluster_names, lambda names: len(names) == 2)
        await eventually(lambda: slow.begins, lambda begins: begins == 2)
        removing = asyncio.create_task(multi.remove_provider("one"))
        await eventually(manager.cluster_names, lambda names: names == ["one-more#a"])
        await eventually(lambda: slow.ends, lambda ends: ends == 1)
        with pytest.raises(ProviderError, match="already"):
            multi.add_provider("one", ClustersProvider())
        assert not removing.done()
        slow.allowed.set()
        await asyncio.wait_for(removing, 60)
        assert multi.provider_names() == ["one-more"]

        # The removed member may be added again.
        multi.add_provider("one", first)
        await eventually(manager.cluster_names, lambda names: names == ["one#a", "one-more#a"])
        await multi.remove_provider("unknown")


async def test_failed_member_is_restarted_and_others_stay(eventually, caplog):
    failing, steady, multi = Failing(failures=1), ClustersProvider(), MultiProvider()
    await steady.add(cluster("a"))
    multi.add_provider("bad", failing)
    multi.add_provider("good", steady)
    async with Manager(None, multi, name="test") as manager:
        # The failed member is restarted after a second, and adds its second cluster then.
        await eventually(manager.cluster_names, lambda names: {"bad#c1", "good#a"} <= set(names))
        kept = manager.get_cluster("bad#c1")
        await eventually(manager.cluster_names, lambda names: names == ["bad#c1", "bad#c2", "good#a"])
        assert manager.get_cluster("bad#c1") is kept
        assert "provider bad failed; restarting it in" in caplog.text
        assert multi.provider_names() == ["bad", "good"]


async def test_finished_member_keeps_its_clusters_until_removal(eventually):
    multi = MultiProvider(separator="/")
    multi.add_provider("fixed", SingleProvider(cluster("a")))
    async with Manager(None, multi, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["fixed/a"])
        await multi.remove_provider("fixed")
        assert manager.cluster_names() == []
        with pytest.raises(ClusterNotFound):
            manager.get_cluster("fixed/a")


@pytest.mark.parametrize("name", ["", "a#b", "#"])
def test_ambiguous_member_name_is_refused(name):
    with pytest.raises(ProviderError, match="cannot be called"):
        MultiProvider().add_provider(name, ClustersProvider())


def test_unknown_member_and_empty_separator_are_refused():
    multi = MultiProvider()
    with pytest.raises(ProviderError, match="no provider 'x'"):
        multi.get_provider("x")
    with pytest.raises(ProviderError, match="separator"):
        MultiProvider(separator="")


async def test_multi_provider_refuses_a_second_run(eventually):
    multi = MultiProvider()
    async with Manager(None, multi, name="test") as manager:
        await eventually(lambda: multi._running)
        with pytest.raises(ProviderError, match="runs already"):
            await multi.run(manager.clusters)
