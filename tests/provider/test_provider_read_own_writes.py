"""Caches whose watch lags: reads see every write of the client."""

from __future__ import annotations

import pytest

from kplane.provider import CacheScope, Client, Cluster, NotFound, Request, Resource, Unreachable
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.providers.namespace.provider import _NamespaceCluster
from kplane.provider.testing import FakeCluster

MAPS = "v1/ConfigMap"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
KEY = Request("a", "default", "m")


def body(**fields):
    return {"metadata": {"name": "m", "namespace": "default", **fields.pop("metadata", {})}, **fields}


class Behind:
    """A cluster whose watches deliver no event until `catch_up`."""

    def __init__(self, **scopes):
        self.fake = FakeCluster("a", kinds=[WIDGETS])
        if scopes:
            self.fake.wire(Wiring(cache_scopes=scopes))
        self.followers = []

    async def follow(self, *kinds, **options):
        for kind in kinds:
            await self.fake.cache.list(kind, **options)
        followers = self.fake._store.followers
        assert len(followers) >= len(kinds)
        self.followers, self.version = list(followers), self.fake._store.version
        followers.clear()

    async def catch_up(self, eventually):
        for change in self.fake._store.history[self.version :]:
            for follower in self.followers:
                follower(change)
        self.fake._store.followers.update(self.followers)
        # The last event in the cache shows that all before it are.
        await self.fake.client.create(MAPS, body(metadata={"name": "last"}))
        await eventually(
            lambda: self.fake.cache.informer(MAPS)._parts.of(None).mirror._own_writes._progress >= self.version + 1
        )


@pytest.fixture
async def behind():
    made = []

    def make(**scopes):
        made.append(Behind(**scopes))
        return made[-1]

    yield make
    for each in made:
        await each.fake.aclose()


async def names(cluster, **options):
    return [obj["metadata"]["name"] for obj in await cluster.cache.list(MAPS, **options)]


async def test_cache_returns_each_write_before_its_watch_event(behind):
    cluster = behind()
    await cluster.follow(MAPS)
    client, cache = cluster.fake.client, cluster.fake.cache
    created = await client.create(MAPS, body(data={"a": "1"}))
    assert await cache.get(MAPS, KEY) == created
    replaced = await client.replace(MAPS, {**created, "data": {"a": "2"}})
    assert await cache.get(MAPS, KEY) == replaced
    patched = await client.patch(MAPS, KEY, {"data": {"a": "3"}})
    assert await cache.get(MAPS, KEY) == patched
    patched = await client.json_patch(MAPS, KEY, [{"op": "replace", "path": "/data/a", "value": "4"}])
    assert await cache.get(MAPS, KEY) == patched
    applied = await client.apply(MAPS, body(data={"b": "5"}))
    assert await cache.get(MAPS, KEY) == applied
    assert applied["data"] == {"a": "4", "b": "5"}
    await client.delete(MAPS, KEY)
    with pytest.raises(NotFound):
        await cache.get(MAPS, KEY)


async def test_handlers_receive_a_write_once(behind, eventually):
    cluster = behind()
    await cluster.follow(MAPS)
    seen = []
    cluster.fake.cache.informer(MAPS).add_handler(lambda event: seen.append((event.kind, event.name)))
    await cluster.fake.client.create(MAPS, body())
    await cluster.fake.client.patch(MAPS, KEY, {"data": {"a": "1"}})
    assert seen == [("ADDED", "m"), ("MODIFIED", "m")]
    await cluster.fake.client.delete(MAPS, KEY)
    await cluster.catch_up(eventually)
    assert seen == [("ADDED", "m"), ("MODIFIED", "m"), ("DELETED", "m"), ("ADDED", "last")]


async def test_cache_removes_object_with_its_last_finalizer(behind, eventually):
    cluster = behind()
    await cluster.follow(WIDGETS, MAPS)
    client, cache = cluster.fake.client, cluster.fake.cache
    await client.create(WIDGETS, body(metadata={"finalizers": ["example.com/a"]}))
    await client.delete(WIDGETS, KEY)
    assert "deletionTimestamp" in (await cache.get(WIDGETS, KEY))["metadata"]
    await client.patch(WIDGETS, KEY, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await cache.get(WIDGETS, KEY)
    await cluster.catch_up(eventually)
    assert await cache.list(WIDGETS) == []


async def test_cache_ignores_a_response_later_than_the_deletion(behind, eventually):
    cluster = behind()
    await cluster.follow(MAPS)
    informer = cluster.fake.cache.informer(MAPS)
    late = []
    cluster.fake.client.ignore_writes(cluster.fake.cache.observe)
    cluster.fake.client.observe_writes(late.append)
    await cluster.fake.client.create(MAPS, body())
    await cluster.fake.client.delete(MAPS, KEY)
    await cluster.catch_up(eventually)
    for written in late:
        informer.observe(written)
    assert await names(cluster.fake) == ["last"]


async def test_cache_ignores_dry_runs(behind):
    cluster = behind()
    await cluster.follow(MAPS)
    created = await cluster.fake.client.create(MAPS, body())
    await cluster.fake.client.delete(MAPS, KEY, dry_run=True)
    assert await cluster.fake.cache.get(MAPS, KEY) == created
    assert await cluster.fake.client.get(MAPS, KEY) == created


async def test_cache_ignores_writes_outside_its_scope(behind):
    scope = CacheScope(namespaces=("default",), label_selector="app=web")
    cluster = behind(**{MAPS: scope})
    await cluster.follow(MAPS)
    client = cluster.fake.client
    await client.create(MAPS, body())
    await client.create(MAPS, body(metadata={"namespace": "kube-public", "labels": {"app": "web"}}))
    assert await names(cluster.fake) == []
    await client.patch(MAPS, KEY, {"metadata": {"labels": {"app": "web"}}})
    assert await names(cluster.fake) == ["m"]
    await client.patch(MAPS, KEY, {"metadata": {"labels": None}})
    assert await names(cluster.fake) == []


async def test_single_object_cache_sees_its_own_writes(behind):
    cluster = behind(**{MAPS: CacheScope(namespaces=("default",), name="m")})
    await cluster.follow(MAPS)
    await cluster.fake.client.create(MAPS, body(data={"a": "1"}))
    await cluster.fake.client.create(MAPS, body(metadata={"name": "other"}))
    assert await names(cluster.fake) == ["m"]


async def test_metadata_cache_stores_only_metadata_of_a_write(behind):
    cluster = behind()
    await cluster.follow(MAPS, metadata_only=True)
    created = await cluster.fake.client.create(MAPS, body(data={"a": "1"}))
    found = await cluster.fake.cache.get(MAPS, KEY, metadata_only=True)
    assert found == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": created["metadata"]}


async def test_cache_ignores_refused_and_unanswered_writes(behind):
    cluster = behind()
    await cluster.follow(MAPS)
    created = await cluster.fake.client.create(MAPS, body())
    cluster.fake.fail(Unreachable("no answer came", kind="timeout"), verb="patch", kind=MAPS, takes_effect=True)
    with pytest.raises(Unreachable):
        await cluster.fake.client.patch(MAPS, KEY, {"data": {"a": "1"}})
    assert await cluster.fake.cache.get(MAPS, KEY) == created


async def test_closed_cache_observes_no_writes(behind):
    cluster = behind()
    await cluster.follow(MAPS)
    client = cluster.fake.client
    await cluster.fake.cache.aclose()
    assert client._write_observers == ()
    await client.create(MAPS, body())


async def test_namespace_cluster_reads_its_own_writes(behind):
    cluster = behind()
    await cluster.follow(MAPS)
    view: Cluster = _NamespaceCluster(cluster.fake, "kube-public", uid="u")
    client: Client = view.client
    created = await client.create(MAPS, body(data={"a": "1"}))
    assert await view.cache.get(MAPS, KEY) == created
    host = await cluster.fake.cache.get(MAPS, "m", namespace="kube-public")
    assert host["data"] == {"a": "1"}
    assert host["metadata"]["namespace"] == "kube-public"
    await client.delete(MAPS, KEY)
    with pytest.raises(NotFound):
        await view.cache.get(MAPS, KEY)
    await view.aclose()
