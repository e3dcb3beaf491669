"""Providers of clusters in code: clusters added and removed, a single cluster, and no cluster."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import Cluster, ClusterConfig, ClusterNotFound, ClusterNotReady, Manager, ProviderError
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.providers.nop import NopProvider
from kplane.provider.providers.single import SingleProvider


def cluster(name, *, port=1, token=None):
    return Cluster(name, config=ClusterConfig(f"https://127.0.0.1:{port}", token=token))


class Slow:
    """An aware that records its engagements, and whose close waits for `allowed`."""

    def __init__(self, *, allowed):
        self.allowed = asyncio.Event()
        self.engaged = []
        if allowed:
            self.allowed.set()

    async def engage(self, engagement):
        self.engaged.append(engagement)
        engagement.on_close(self.allowed.wait)


async def test_added_cluster_is_returned_and_removed_cluster_is_gone(eventually):
    """Criterion 44: add -> get returns the same object; remove -> names are empty at once."""
    provider = ClustersProvider()
    early, late = cluster("early"), cluster("late")
    await provider.add(early)
    async with Manager(None, provider, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["early"])
        assert manager.get_cluster("early") is early
        await provider.add(late)
        assert manager.get_cluster("late") is late
        assert manager.cluster_names() == provider.names() == ["early", "late"]
        await provider.remove("early")
        await provider.remove("late")
        assert manager.cluster_names() == provider.names() == []
        await provider.remove("unknown")


async def test_add_of_existing_name_is_refused(eventually):
    provider = ClustersProvider()
    await provider.add(cluster("a"))
    with pytest.raises(ProviderError, match="already"):
        await provider.add(cluster("a", port=2))
    async with Manager(None, provider, name="test") as manager:
        await eventually(manager.cluster_names)
        with pytest.raises(ProviderError, match="already"):
            await provider.add(cluster("a", port=2))
        assert manager.get_cluster("a").config.server.endswith(":1")


async def test_replacement_stays_after_old_engagement_closes(eventually):
    """Criterion 62: the new cluster stays after a replacement."""
    slow = Slow(allowed=True)
    provider = ClustersProvider()
    async with Manager(None, provider, awares=[slow], name="test") as manager:
        await eventually(lambda: provider._fleet)
        await provider.add(cluster("a"))
        await eventually(lambda: slow.engaged)
        other = cluster("a", port=2)
        await provider.add_or_replace(other)
        await eventually(lambda: len(slow.engaged), lambda engaged: engaged == 2)
        assert slow.engaged[0].closed
        assert not slow.engaged[1].closing
        assert manager.get_cluster("a") is other
        # The close of the old engagement could wrongly remove the new cluster during this time.
        for _ in range(50):
            await asyncio.sleep(0.01)
            assert manager.get_cluster("a") is other
            assert provider.names() == manager.cluster_names() == ["a"]
            assert [engagement.closing for engagement in slow.engaged] == [True, False]
        await provider.add_or_replace(cluster("a", port=2, token="renewed"))
        assert len(manager.clusters.engagements()) == 1


async def test_cluster_does_not_return_while_being_removed(eventually):
    slow = Slow(allowed=False)
    provider = ClustersProvider()
    async with Manager(None, provider, awares=[slow], name="test") as manager:
        await eventually(lambda: provider._fleet)
        await provider.add(cluster("a"))
        await eventually(lambda: slow.engaged)
        removing = asyncio.create_task(provider.remove("a"))
        await eventually(manager.cluster_names, lambda names: names == [])
        assert not removing.done()
        with pytest.raises((ClusterNotFound, ClusterNotReady)):
            manager.get_cluster("a")
        slow.allowed.set()
        await asyncio.wait_for(removing, 60)
        assert manager.clusters.engagements() == []


async def test_provider_refuses_second_run(eventually):
    provider = ClustersProvider()
    async with Manager(None, provider, name="test") as manager:
        await eventually(lambda: provider._fleet)
        with pytest.raises(ProviderError, match="runs already"):
            await provider.run(manager.clusters)
        await provider.add(cluster("a"))
        assert manager.cluster_names() == ["a"]


async def test_single_provider_serves_given_cluster(eventually):
    fixed = cluster("only")
    provider = SingleProvider(fixed)
    async with Manager(None, provider, name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["only"])
        assert manager.get_cluster("only") is fixed
        assert fixed.came_from(provider)


async def test_nop_provider_has_no_clusters():
    async with Manager(None, NopProvider(), name="test") as manager:
        assert manager.cluster_names() == []
        with pytest.raises(ClusterNotFound):
            manager.get_cluster("a")
