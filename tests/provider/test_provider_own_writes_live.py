"""Caches of a real kube-apiserver return own writes, and converge to the state of the server."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import CacheScope, Cluster, ClusterConfig, NotFound
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.cluster.cluster import Wiring

pytestmark = pytest.mark.integration

KINDS = ("v1/ConfigMap", "v1/ServiceAccount", "v1/Secret", "v1/PersistentVolumeClaim", "apps/v1/Deployment")
LABELS = {"app": "own-writes"}
POD = {"containers": [{"name": "a", "image": "a"}]}
SPECS = {
    "v1/PersistentVolumeClaim": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    "apps/v1/Deployment": {
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS}, "spec": POD},
    },
}


@pytest.fixture
async def cluster(api_server):
    cluster = Cluster("a", config=ClusterConfig.load(api_server.admin_kubeconfig))
    cluster.wire(Wiring(cache_scopes={"v1/Secret": CacheScope(label_selector="app=own-writes")}))
    yield cluster
    await cluster.aclose()


async def read(cluster, kind, name, namespace):
    try:
        return await cluster.cache.get(kind, name, namespace=namespace)
    except NotFound:
        return None


async def work(cluster, kind, name, namespace):
    """Write an object in all ways, and read each write."""
    client, metadata = cluster.client, {"name": name, "namespace": namespace, "labels": LABELS}
    body = {"metadata": metadata} | ({"spec": SPECS[kind]} if kind in SPECS else {})
    for number in range(3):
        created = await client.create(kind, body)
        assert await read(cluster, kind, name, namespace) == created
        change = {"metadata": {"annotations": {"number": str(number)}, "finalizers": ["example.com/a"]}}
        patched = await client.patch(kind, name, change, namespace=namespace)
        assert await read(cluster, kind, name, namespace) == patched
        held = await client.delete(kind, name, namespace=namespace, grace_period_seconds=0)
        found = await read(cluster, kind, name, namespace)
        assert "deletionTimestamp" in held["metadata"]
        assert int(found["metadata"]["resourceVersion"]) >= int(held["metadata"]["resourceVersion"])
        await client.patch(kind, name, {"metadata": {"finalizers": None}}, namespace=namespace)
        assert await read(cluster, kind, name, namespace) is None


@pytest.mark.parametrize("kind", KINDS)
async def test_cache_reads_see_each_write_and_converge(cluster, namespace, kind, eventually):
    await cluster.cache.list(kind)
    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(work(cluster, kind, f"own-{number}", namespace))
    held = {"metadata": {"name": "last", "namespace": namespace, "labels": LABELS}}
    if kind in SPECS:
        held["spec"] = SPECS[kind]
    await cluster.client.create(kind, held)
    # The API server adds a finalizer to a PersistentVolumeClaim, which no controller removes here.
    await cluster.client.patch(kind, "last", {"metadata": {"finalizers": None}}, namespace=namespace)
    await cluster.client.delete(kind, "last", namespace=namespace, propagation="Background", grace_period_seconds=0)

    async def cached():
        return {obj["metadata"]["name"] for obj in await cluster.cache.list(kind, namespace=namespace)}

    async def stored():
        listing = await cluster.client.list(kind, namespace=namespace, label_selector="app=own-writes")
        return {obj["metadata"]["name"] for obj in listing.items}

    await eventually(stored, lambda found: not found)
    await eventually(cached, lambda found: not any(name.startswith(("own-", "last")) for name in found))


async def test_terminating_namespace_stays_cached_until_finalized(cluster, eventually):
    await cluster.cache.list(NAMESPACES)
    await cluster.client.create(NAMESPACES, {"metadata": {"name": "own-writes-ends"}})
    await cluster.client.delete(NAMESPACES, "own-writes-ends")
    found = await cluster.cache.get(NAMESPACES, "own-writes-ends")
    assert "deletionTimestamp" in found["metadata"]
