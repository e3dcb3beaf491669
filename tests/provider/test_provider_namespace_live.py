"""Namespaces of a real API server, each as a separate cluster."""

from __future__ import annotations

import asyncio
import contextlib
import uuid

import pytest

from kplane.provider import Cluster, Informer, Invalid, Manager, NotFound, ProviderError
from kplane.provider.client.resources import CLUSTER_ROLES, CONFIG_MAPS, EVENTS, NAMESPACES, SERVICE_ACCOUNTS
from kplane.provider.controllers.builder import controller
from kplane.provider.providers.multi import MultiProvider
from kplane.provider.providers.namespace import NamespaceProvider

pytestmark = pytest.mark.integration

ZOO = {
    "zoo": {"elephant": "animal", "lion": "animal", "keeper": "human"},
    "jungle": {"monkey": "animal", "tree": "thing", "tarzan": "human"},
    "island": {"bird": "animal", "stone": "thing", "crusoe": "human"},
}


def kind_of(found):
    return [found["metadata"].get("labels", {}).get("type", "")]


class World:
    """Three namespaces with a few ConfigMaps each, and no others."""

    def __init__(self, client):
        self.client = client
        self.mark = uuid.uuid4().hex[:8]

    def name(self, namespace):
        return f"{namespace}-{self.mark}"

    async def build(self):
        await asyncio.gather(*(self.settle(namespace, inhabitants) for namespace, inhabitants in ZOO.items()))

    async def settle(self, namespace, inhabitants):
        name = self.name(namespace)
        await self.client.create(NAMESPACES, {"metadata": {"name": name, "labels": {"world": self.mark}}})
        for inhabitant, kind in inhabitants.items():
            await self.put(namespace, inhabitant, kind)

    async def unsettle(self, namespace):
        """Delete the namespace without the five seconds that a controller manager needs."""
        name = self.name(namespace)
        await self.client.delete(NAMESPACES, name)
        # From now on the API server refuses new objects in the namespace.
        for resource in (CONFIG_MAPS, SERVICE_ACCOUNTS):
            await self.client.request("DELETE", resource.path(namespace=name))
        found = await self.client.get(NAMESPACES, name)
        found["spec"] = {"finalizers": []}
        await self.client.request("PUT", f"/api/v1/namespaces/{name}/finalize", body=found)

    async def put(self, namespace, name, kind):
        body = {"metadata": {"name": name, "labels": {"type": kind}}}
        await self.client.create(CONFIG_MAPS, body, namespace=self.name(namespace))

    async def stomach(self, namespace, name):
        found = await self.client.get(CONFIG_MAPS, name, namespace=self.name(namespace))
        return found.get("data", {}).get("stomach")

    def names(self, *, prefix=""):
        return sorted(f"{prefix}{self.name(namespace)}" for namespace in ZOO)


@pytest.fixture
async def world(client):
    world = World(client)
    await world.build()
    return world


@pytest.fixture
async def host(client):
    host = Cluster("host", config=client.config)
    yield host
    await host.aclose()


def feed(manager):
    """Run a controller without knowledge of namespaces that feeds the animals; return its requests."""
    asked = []

    async def reconcile(request):
        asked.append(request)
        cluster = manager.get_cluster(request.cluster)
        with contextlib.suppress(NotFound):
            found = await cluster.cache.get(CONFIG_MAPS, request.name, namespace=request.namespace)
            assert found["metadata"]["namespace"] == request.namespace
            if kind_of(found) == ["animal"] and not found.get("data"):
                body = {"metadata": {"namespace": request.namespace}, "data": {"stomach": "food"}}
                await cluster.client.patch(CONFIG_MAPS, request.name, body, namespace=request.namespace)

    controller(manager).named("feeding").for_("v1/ConfigMap").build(reconcile)
    return asked


@contextlib.asynccontextmanager
async def managing(world, host):
    provider = NamespaceProvider(host, label_selector=f"world={world.mark}")
    async with Manager(None, provider, name="test") as manager:
        yield manager


async def test_namespace_objects_are_reconciled_in_default(world, host, eventually):
    """Criterion 53: existing, new and updated objects appear in ns `default`. A write to another ns is Invalid."""
    async with managing(world, host) as manager:
        asked = feed(manager)
        await eventually(manager.cluster_names, lambda names: names == world.names())
        assert await manager.ready_checks.run() == {"provider": None}
        await eventually(lambda: world.stomach("zoo", "lion"), lambda stomach: stomach == "food")
        await world.put("zoo", "tiger", "animal")
        await eventually(lambda: world.stomach("zoo", "tiger"), lambda stomach: stomach == "food")
        await world.client.patch(CONFIG_MAPS, "lion", {"data": None}, namespace=world.name("zoo"))
        await eventually(lambda: world.stomach("zoo", "lion"), lambda stomach: stomach == "food")
        assert {request.namespace for request in asked} == {"default"}
        assert {request.cluster for request in asked if request.name == "tiger"} == {world.name("zoo")}

        client = manager.get_cluster(world.name("zoo")).client
        body = {"metadata": {"name": "new", "namespace": world.name("jungle")}}
        for write in (client.create(CONFIG_MAPS, body), client.apply(CONFIG_MAPS, body, force=True)):
            with pytest.raises(Invalid, match="must be 'default'"):
                await write
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, "monkey", namespace=world.name("jungle"))
        with pytest.raises(NotFound):
            await client.get(CLUSTER_ROLES, "cluster-admin")
        # All namespaces share an informer of a kind.
        assert len(host.cache._informers) == 1


async def test_index_finds_objects_of_a_namespace_and_of_the_host(world, host, eventually):
    """Criterion 35: a host-wide field query sees all three namespaces. Criterion 36: the same index twice is fine."""
    async with managing(world, host) as manager:
        await eventually(manager.cluster_names, lambda names: names == world.names())
        manager.index_field(CONFIG_MAPS, "type", kind_of)
        manager.index_field(CONFIG_MAPS, "type", kind_of)
        manager.index_field(CONFIG_MAPS, "where", lambda found: [found["metadata"]["namespace"]])
        cache = manager.get_cluster(world.name("island")).cache
        for namespace in (None, "default"):
            (found,) = await cache.list(CONFIG_MAPS, namespace=namespace, field={"type": "human"})
            assert (found["metadata"]["name"], found["metadata"]["namespace"]) == ("crusoe", "default")
        assert len(await cache.list(CONFIG_MAPS, field={"where": "default"})) >= 3
        with pytest.raises(NotFound):
            await cache.list(CONFIG_MAPS, namespace=world.name("zoo"))
        with pytest.raises(NotFound):
            await cache.get(CONFIG_MAPS, "keeper", namespace="default")
        assert cache.informer(CONFIG_MAPS).get("crusoe", namespace="default")
        assert ("default", "crusoe") in cache.informer(CONFIG_MAPS).keys(label_selector="type=human")

        humans = await host.cache.list(CONFIG_MAPS, field={"type": "human"}, label_selector="type=human")
        ours = [each["metadata"] for each in humans if each["metadata"]["namespace"] in world.names()]
        assert sorted(each["name"] for each in ours) == ["crusoe", "keeper", "tarzan"]
        (alone,) = await host.cache.list(CONFIG_MAPS, namespace=world.name("island"), field={"type": "human"})
        assert alone["metadata"]["namespace"] == world.name("island")


async def test_namespace_client_translates_every_read_and_write(world, host, eventually):
    async with managing(world, host) as manager:
        await eventually(manager.cluster_names, lambda names: names == world.names())
        client = manager.get_cluster(world.name("jungle")).client
        seen = []
        mirror = asyncio.create_task(
            Informer(client, CONFIG_MAPS, namespace="default").run(
                lambda event: seen.append((event.kind, event.object["metadata"]["namespace"], event.name))
            )
        )
        place = {"namespace": "default", "name": "snake"}
        made = await client.create(CONFIG_MAPS, {"metadata": place})
        made["data"] = {"step": "replaced"}
        made = await client.replace(CONFIG_MAPS, made)
        made = await client.patch(CONFIG_MAPS, "snake", {"data": {"step": "merged"}}, namespace="default")
        operations = [
            {"op": "test", "path": "/metadata/namespace", "value": "default"},
            {"op": "replace", "path": "/data/step", "value": "patched"},
        ]
        made = await client.json_patch(CONFIG_MAPS, "snake", operations, namespace="default")
        assert (made["metadata"]["namespace"], made["data"]) == ("default", {"step": "patched"})
        made = await client.apply(CONFIG_MAPS, {"metadata": place, "data": {"step": "applied"}}, force=True)
        assert made["data"] == {"step": "applied"}
        raw = await client.request("GET", "/api/v1/namespaces/default/configmaps/snake")
        assert raw["metadata"]["namespace"] == "default"
        names = {each["metadata"]["name"] for each in (await client.list(CONFIG_MAPS)).items}
        assert names >= {"snake", "monkey"}
        assert "lion" not in names
        assert await client.exists(CONFIG_MAPS, "snake", namespace="default")
        assert (await world.client.get(CONFIG_MAPS, "snake", namespace=world.name("jungle")))["data"] == made["data"]
        await eventually(lambda: ("ADDED", "default", "snake") in seen)
        await client.delete(CONFIG_MAPS, "snake", namespace="default")
        await eventually(lambda: ("DELETED", "default", "snake") in seen)
        await client.delete_all(CONFIG_MAPS, namespace="default", label_selector="type=thing")
        assert not await client.exists(CONFIG_MAPS, "tree", namespace="default")
        mirror.cancel()
        await asyncio.wait([mirror])


async def test_recorder_writes_events_into_the_namespace(world, host, eventually):
    async with managing(world, host) as manager:
        cluster = await eventually(lambda: manager.get_cluster(world.name("zoo")))
        lion = await cluster.cache.get(CONFIG_MAPS, "lion", namespace="default")
        cluster.recorder("keeper").event(lion, "Normal", "Fed", "it was hungry")

        async def events():
            return (await world.client.list(EVENTS, namespace=world.name("zoo"))).items

        (event,) = await eventually(events)
        assert (event["reason"], event["involvedObject"]["namespace"]) == ("Fed", world.name("zoo"))
        (seen,) = (await cluster.client.list(EVENTS)).items
        assert seen["involvedObject"]["namespace"] == "default"


async def test_recreated_namespace_is_another_cluster(world, host, eventually):
    async with managing(world, host) as manager:
        await eventually(manager.cluster_names, lambda names: names == world.names())
        before = {each.cluster.name: each for each in manager.clusters.engagements()}
        name = world.name("island")
        await world.unsettle("island")
        await eventually(manager.cluster_names, lambda names: name not in names)
        await eventually(lambda: before[name].closed)
        await world.settle("island", {"friday": "human"})
        await eventually(lambda: manager.get_cluster(name))
        assert {each.cluster.name for each in manager.clusters.engagements() if each is before[each.cluster.name]} == {
            world.name("zoo"),
            world.name("jungle"),
        }
        found = await manager.get_cluster(name).cache.get(CONFIG_MAPS, "friday", namespace="default")
        assert found["metadata"]["namespace"] == "default"


async def test_namespaces_of_two_hosts_are_distinct_clusters(world, host, client, eventually):
    """Criterion 45, with namespaces: `cloud1#island` and `cloud2#island` are distinct, indexes included."""
    other, multi = Cluster("other", config=client.config), MultiProvider()
    multi.add_provider("cloud1", NamespaceProvider(host, label_selector=f"world={world.mark}"))
    async with Manager(None, multi, name="test") as manager:
        manager.index_field(CONFIG_MAPS, "type", kind_of)
        await eventually(manager.cluster_names, lambda names: names == world.names(prefix="cloud1#"))
        multi.add_provider("cloud2", NamespaceProvider(other, label_selector=f"world={world.mark}"))
        both = world.names(prefix="cloud1#") + world.names(prefix="cloud2#")
        await eventually(manager.cluster_names, lambda names: names == sorted(both))
        for cloud in ("cloud1", "cloud2"):
            cache = manager.get_cluster(f"{cloud}#{world.name('island')}").cache
            (found,) = await cache.list(CONFIG_MAPS, field={"type": "human"})
            assert found["metadata"]["name"] == "crusoe"
        await multi.remove_provider("cloud1")
        assert manager.cluster_names() == world.names(prefix="cloud2#")
        assert await manager.get_cluster(f"cloud2#{world.name('zoo')}").cache.list(CONFIG_MAPS)
    await other.aclose()


async def test_paused_cache_holds_its_handlers_until_resumed(world, host, eventually):
    async with managing(world, host) as manager:
        await eventually(manager.cluster_names, lambda names: names == world.names())
        zoo, jungle = (manager.get_cluster(world.name(name)).cache for name in ("zoo", "jungle"))
        first, beside, again = [], [], []
        registration = zoo.informer(CONFIG_MAPS).add_handler(lambda event: first.append(event.name))
        jungle.informer(CONFIG_MAPS).add_handler(lambda event: beside.append(event.name))
        await registration.synced.wait()
        whole = host.cache.informer(CONFIG_MAPS)
        await zoo.pause()
        before = list(first)
        await world.put("zoo", "tiger", "animal")
        await world.put("jungle", "snake", "animal")
        await eventually(lambda: "snake" in beside)
        assert first == before
        zoo.informer(CONFIG_MAPS).add_handler(lambda event: again.append((event.name, event.initial)))
        await eventually(lambda: {("tiger", True), ("lion", True)} <= set(again))
        await eventually(lambda: sorted(first) == sorted([*before, *before, "tiger"]))
        assert host.cache.informer(CONFIG_MAPS) is whole
        assert zoo.size_bytes() == {"ConfigMap": 0}
        assert manager.get_cluster(world.name("zoo")).health.state == "Ready"


async def test_manager_transform_applies_to_the_host_cache(world, host, eventually):
    def without_labels(found):
        found["metadata"].pop("labels", None)
        return found

    provider = NamespaceProvider(host, label_selector=f"world={world.mark}")
    async with Manager(None, provider, transform=without_labels, name="test") as manager:
        cluster = await eventually(lambda: manager.get_cluster(world.name("zoo")))
        found = await cluster.cache.get(CONFIG_MAPS, "lion", namespace="default")
        assert "labels" not in found["metadata"]


async def test_local_cluster_is_refused_as_host(client):
    with pytest.raises(ProviderError, match="give a cluster of its own"):
        NamespaceProvider(Manager(client.config, name="test").local)
