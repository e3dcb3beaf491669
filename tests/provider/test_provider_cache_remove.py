"""Informers that a program removes from a cache."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from kplane.provider import Cache, Client, ClusterConfig, ClusterNotReady
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.providers.namespace.cache import NamespaceCache
from kplane.provider.providers.namespace.view import NamespaceView
from kplane.provider.testing import FakeCluster

MAPS = "v1/ConfigMap"
SECRETS = "v1/Secret"


@pytest.fixture
async def cluster():
    cluster = FakeCluster("a")
    await cluster.client.create(MAPS, {"metadata": {"name": "x", "namespace": "default"}, "data": {"key": "value"}})
    yield cluster
    await cluster.aclose()


def watches(cluster):
    return len(cluster._transports[0]._watches)


async def test_removed_kind_has_no_watch_and_no_objects(cluster):
    for kind in (MAPS, SECRETS):
        await cluster.cache.list(kind)
    await cluster.cache.list(MAPS, metadata_only=True)
    informer = weakref.ref(cluster.cache.informer(MAPS))
    assert watches(cluster) == 3
    await cluster.cache.remove(MAPS)
    assert watches(cluster) == 1
    assert cluster.cache.size_bytes() == {"Secret": 0}
    gc.collect()
    assert informer() is None


async def test_removed_kind_is_listed_again_without_old_handlers(cluster, eventually):
    seen, index = [], []
    cluster.cache.index_field(MAPS, "data.key", lambda found: [found["data"]["key"]])
    registration = cluster.cache.informer(MAPS).add_handler(lambda event: seen.append(event.name))
    await eventually(lambda: seen)
    await cluster.cache.remove(MAPS)
    assert registration.removed
    await cluster.client.create(MAPS, {"metadata": {"name": "y", "namespace": "default"}, "data": {"key": "other"}})
    index += await cluster.cache.list(MAPS, field={"data.key": "other"})
    assert [obj["metadata"]["name"] for obj in index] == ["y"]
    assert seen == ["x"]


async def test_removal_of_a_kind_without_informers_does_nothing(cluster):
    await cluster.cache.remove(SECRETS)
    assert await cluster.cache.list(MAPS)


async def test_wait_for_removed_kind_raises(cluster, eventually):
    with cluster.outage():
        waiting = asyncio.create_task(cluster.cache.list(SECRETS))
        await eventually(lambda: cluster.health.state == "Unreachable")
        await cluster.cache.remove(SECRETS)
        with pytest.raises(ClusterNotReady, match="was stopped"):
            await asyncio.wait_for(waiting, 60)


async def test_wait_for_namespace_ends_with_cluster_while_host_is_unsynced():
    async with Client(ClusterConfig("https://127.0.0.1:1")) as client:
        host = Cache(client)
        zoo = NamespaceCache(host, client, view=NamespaceView("zoo"))
        waiting = asyncio.create_task(zoo.informer(CONFIG_MAPS).wait_synced())
        await asyncio.sleep(0)
        await zoo.aclose()
        with pytest.raises(ClusterNotReady, match="was stopped"):
            await asyncio.wait_for(waiting, 60)
        await host.aclose()
