"""Handlers of the program survive the loss and the return of a shard."""

from __future__ import annotations

import asyncio
import json

import pytest

from kplane.provider import Cache, CacheScope, Client, Cluster, ClusterNotReady, NotFound, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers.namespace.cache import NamespaceCache
from kplane.provider.providers.namespace.provider import NamespaceProvider
from kplane.provider.providers.namespace.view import NamespaceView

END = {"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}


def config_map(namespace, name, *, version=1, **labels):
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}}


class Server:
    """Streams ConfigMaps, then changes to each open watch; counts started watches."""

    def __init__(self, tools):
        self.tools, self.objects, self.watches, self.queries = tools, [], [], []

    async def answer(self, asked, writer):
        self.queries.append(asked.target.partition("?")[2])
        changes = asyncio.Queue()
        self.watches.append(changes)
        writer.write(self.tools.stream_head())
        for kind, found in [*(("ADDED", obj) for obj in self.objects), ("BOOKMARK", END)]:
            await self.send(kind, found, writer)
        while True:
            await self.send(*await changes.get(), writer)

    async def send(self, kind, found, writer):
        writer.write(self.tools.chunk(json.dumps({"type": kind, "object": found}).encode() + b"\n"))
        await writer.drain()

    def change(self, kind, found):
        self.watches[-1].put_nowait((kind, found))


@pytest.fixture
def server(tools):
    return Server(tools)


@pytest.fixture
async def config(fault_server, server):
    return (await fault_server(server.answer)).config


class Watching:
    """An aware that adds a handler for each engagement, and removes it at the end of the engagement."""

    def __init__(self):
        self.events = []

    async def engage(self, engagement):
        informer = engagement.cluster.cache.informer(CONFIG_MAPS)
        registration = informer.add_handler(lambda event: self.events.append((engagement, event.name)))
        engagement.on_close(registration.remove)


class Seen(list):
    def __call__(self, event):
        self.append((event.kind, event.namespace, event.name, event.initial))


async def test_handlers_of_the_program_survive_the_loss_of_a_shard(config, server, eventually):
    server.objects = [config_map("x", "stays"), config_map("x", "goes")]
    aware, seen = Watching(), Seen()
    clusters = Clusters(awares=[aware], coordinated=True)
    await clusters.add_or_replace(Cluster("acme", config=config))
    clusters.allow("acme")
    registration = clusters.get("acme").cache.informer(CONFIG_MAPS).add_handler(seen)
    await eventually(lambda: len(seen) == len(aware.events) == 2)
    assert len(server.watches) == 1

    await clusters.withdraw("acme")
    assert clusters.get("acme").cache.size_bytes() == {"ConfigMap": 0}
    server.change("DELETED", config_map("x", "stays"))
    server.objects = [config_map("x", "stays"), config_map("x", "new")]
    assert (len(server.watches), len(seen)) == (1, 2)

    clusters.allow("acme")
    await eventually(lambda: len(seen) == len(aware.events) == 4)
    assert sorted(seen[2:]) == [("ADDED", "x", "new", True), ("ADDED", "x", "stays", True)]
    server.change("MODIFIED", config_map("x", "new", version=7))
    await eventually(lambda: seen[4:] == [("MODIFIED", "x", "new", False)])
    await eventually(lambda: len(aware.events) == 5)
    first, *_, last = (engagement for engagement, _ in aware.events)
    assert first is not last
    assert sum(engagement is first for engagement, _ in aware.events) == 2
    assert len(server.watches) == 2

    registration.remove()
    await clusters.withdraw("acme")
    clusters.allow("acme")
    await eventually(lambda: len(aware.events) == 7)
    assert len(seen) == 5
    await clusters.aclose()


async def test_informer_without_handlers_is_not_resumed(config, server, eventually):
    clusters = Clusters(coordinated=True)
    await clusters.add_or_replace(Cluster("acme", config=config))
    clusters.allow("acme")
    await clusters.get("acme").cache.list(CONFIG_MAPS)
    await clusters.withdraw("acme")
    clusters.allow("acme")
    assert clusters.get("acme").cache._informers == {}
    assert len(server.watches) == 1
    await clusters.aclose()


@pytest.fixture
async def host(config):
    host = Cluster("host", config=config)
    yield host
    await host.aclose()


@pytest.fixture
def namespace_cluster(host):
    """`namespace_cluster(name, **wiring)`: a namespace of the host as a cluster."""
    made = []

    def make(name, **wiring):
        cluster = NamespaceProvider(host)._plan({"metadata": {"name": name, "uid": name}})
        cluster.wire(Wiring(**wiring))
        made.append(cluster)
        return cluster

    return make


async def test_handlers_of_a_namespace_survive_a_pause(host, namespace_cluster, server, eventually):
    server.objects = [config_map("zoo", "lion"), config_map("sea", "whale")]
    zoo, seen, beside = namespace_cluster("zoo"), Seen(), Seen()
    informer = zoo.cache.informer(CONFIG_MAPS)
    registration = informer.add_handler(seen)
    namespace_cluster("sea").cache.informer(CONFIG_MAPS).add_handler(beside)
    await eventually(lambda: seen and beside)
    assert seen == [("ADDED", "default", "lion", True)]
    await zoo.pause_reading()
    with pytest.raises(ClusterNotReady, match="was stopped"):
        informer.list()
    assert not registration.synced.is_set()
    for each in (config_map("zoo", "tiger", version=6), config_map("sea", "shark", version=7)):
        server.change("ADDED", each)
    await eventually(lambda: len(beside) == 2)
    assert len(seen) == 1
    zoo.resume_reading()
    await eventually(registration.synced.is_set)
    assert sorted(seen[1:]) == [("ADDED", "default", "lion", True), ("ADDED", "default", "tiger", True)]
    server.change("DELETED", config_map("zoo", "tiger", version=9))
    await eventually(lambda: seen[3:] == [("DELETED", "default", "tiger", False)])
    assert zoo.cache.informer(CONFIG_MAPS) is informer
    registration.remove()
    await zoo.pause_reading()
    assert zoo.cache._informers == {}
    # The informer of the host continues, with or without handlers.
    assert len(server.watches) == 1
    await zoo.aclose()
    assert list(host.cache.informer(CONFIG_MAPS)._handlers) != []


async def test_namespaces_with_equal_scopes_share_a_watch(host, namespace_cluster, server):
    server.objects = [config_map("zoo", "lion", kind="animal"), config_map("sea", "whale", kind="animal")]
    scopes = {"v1/ConfigMap": CacheScope(label_selector="kind=animal", namespaces=("default",))}
    zoo, sea = (namespace_cluster(name, cache_scopes=scopes) for name in ("zoo", "sea"))
    for cluster, name in ((zoo, "lion"), (sea, "whale")):
        (found,) = await cluster.cache.list(CONFIG_MAPS)
        assert (found["metadata"]["namespace"], found["metadata"]["name"]) == ("default", name)
        read = await cluster.cache.get(CONFIG_MAPS, name, namespace="default", decoder=json.loads)
        assert read["metadata"]["namespace"] == "default"
    assert len(server.queries) == 1
    assert "labelSelector=kind%3Danimal" in server.queries[0]
    with pytest.raises(NotFound, match="there is no namespace 'zoo' here"):
        await namespace_cluster("zoo").cache.list(CONFIG_MAPS, namespace="zoo")
    other = namespace_cluster("zoo", cache_scopes={"*": CacheScope(namespaces=("elsewhere",))})
    with pytest.raises(ProviderError, match="outside of the cache"):
        await other.cache.list(CONFIG_MAPS, namespace="default")


async def test_cache_scope_of_the_host_limits_its_namespaces(config, server):
    async with Client(config) as client:
        host = Cache(client, scope_of=lambda _resource: CacheScope(namespaces=("sea",)))
        zoo = NamespaceCache(host, client, view=NamespaceView("zoo"))
        with pytest.raises(ProviderError, match="ConfigMap zoo is outside of the cache, which keeps configmaps in sea"):
            await zoo.list(CONFIG_MAPS)
        await zoo.aclose()
        await host.aclose()
