"""Controllers over real API servers."""

from __future__ import annotations

import asyncio
import collections
import contextlib

import pytest

from kplane.provider import Client, Cluster, ClusterConfig, Manager, Request, Resource
from kplane.provider.client.kinds import BUILT_IN
from kplane.provider.client.resources import CONFIG_MAPS, PODS, SECRETS
from kplane.provider.controllers.builder import controller, every_owner, predicates
from kplane.provider.controllers.handlers import enqueue_owner
from kplane.provider.errors import NotServed
from tests.silent_server import silent_server

pytestmark = pytest.mark.integration


class Given:
    """A provider of two clusters, which are two names of the same API server."""

    name = "given"

    def __init__(self, config):
        self.config = config
        self.fleet = asyncio.get_running_loop().create_future()

    async def run(self, fleet):
        for name in ("a", "b"):
            await fleet.add_or_replace(Cluster(name, config=self.config))
        if not self.fleet.done():
            self.fleet.set_result(fleet)
        await asyncio.Event().wait()


class Work:
    def __init__(self):
        self.counts = collections.Counter()

    async def reconcile(self, request):
        self.counts[request] += 1


@pytest.fixture
async def manager(client):
    return Manager(None, Given(client.config), workers=4, name="test")


@contextlib.asynccontextmanager
async def running(manager):
    async with manager:
        await manager.provider.fleet
        yield


def mine(namespace):
    """Select the objects of the test: a controller manager puts a ConfigMap into each namespace."""
    return lambda event: event.namespace == namespace and event.name != "kube-root-ca.crt"


def config_map(name, **metadata):
    return {"metadata": {"name": name, **metadata}, "data": {"key": "value"}}


async def test_existing_and_new_objects_are_reconciled_once_per_cluster(client, namespace, manager, eventually):
    """Criteria 25, 26: existing, new and updated objects of every engaged cluster are reconciled, once an event."""
    work = Work()
    controller(manager).for_(CONFIG_MAPS, predicates(mine(namespace))).build(work.reconcile)
    await client.create(CONFIG_MAPS, config_map("existing"), namespace=namespace)
    async with running(manager):

        def expect(**counts):
            return {Request(cluster, namespace, name): count for cluster in "ab" for name, count in counts.items()}

        await eventually(lambda: work.counts, lambda counts: counts == expect(existing=1))
        await client.create(CONFIG_MAPS, config_map("new"), namespace=namespace)
        await eventually(lambda: work.counts, lambda counts: counts == expect(existing=1, new=1))
        await client.patch(CONFIG_MAPS, "new", {"data": {"key": "other"}}, namespace=namespace)
        await eventually(lambda: work.counts, lambda counts: counts == expect(existing=1, new=2))
        await (await manager.provider.fleet).remove("b")
        await client.delete(CONFIG_MAPS, "new", namespace=namespace)
        expected = expect(existing=1, new=2) | {Request("a", namespace, "new"): 3}
        await eventually(lambda: work.counts, lambda counts: counts == expected)


async def test_owner_is_reconciled_for_event_of_owned_object(client, namespace, manager, eventually):
    """Criteria 15, 16: events of owned objects reconcile their owners, also by a watch without For."""
    one, every, plain = Work(), Work(), Work()
    of_test = predicates(mine(namespace))
    controller(manager).for_(SECRETS, of_test).owns(CONFIG_MAPS, of_test).build(one.reconcile)
    controller(manager).named("every").for_(SECRETS, of_test).owns(CONFIG_MAPS, of_test, every_owner()).build(
        every.reconcile
    )
    controller(manager).named("plain").watches(CONFIG_MAPS, enqueue_owner(SECRETS), of_test).build(plain.reconcile)
    owners = []
    for name, controls in (("controls", True), ("owns", False)):
        owner = await client.create(SECRETS, {"metadata": {"name": name}}, namespace=namespace)
        uid = owner["metadata"]["uid"]
        owners.append({"apiVersion": "v1", "kind": "Secret", "name": name, "uid": uid, "controller": controls})
    async with running(manager):

        def of_a(work):
            return {each.name: count for each, count in work.counts.items() if each.cluster == "a"}

        # Wait for the first reconciles, because a second request for the same owner meanwhile would be merged.
        for work in (one, every):
            await eventually(lambda work=work: of_a(work), lambda counts: counts == {"controls": 1, "owns": 1})
        await client.create(CONFIG_MAPS, config_map("x", ownerReferences=owners), namespace=namespace)
        await eventually(lambda: of_a(one), lambda counts: counts == {"controls": 2, "owns": 1})
        await eventually(lambda: of_a(every), lambda counts: counts == {"controls": 2, "owns": 2})
        await eventually(lambda: of_a(plain), lambda counts: counts == {"controls": 1})


async def test_predicate_sees_its_kind_and_global_filter_sees_all(client, namespace, manager, eventually):
    """Criterion 17: a per-input predicate sees only its kind; the global filter sees all; both must pass."""
    work, of_all, of_secrets = Work(), set(), set()

    def wants_secret(event):
        of_secrets.add(event.resource.kind)
        return event.name != "unwanted"

    def wants(event):
        of_all.add(event.resource.kind)
        return event.name != "filtered"

    controller(manager).for_(CONFIG_MAPS).watches(
        SECRETS, lambda cluster, event: [Request(cluster.name, "secret", event.name)], predicates(wants_secret)
    ).with_filter(mine(namespace), wants).build(work.reconcile)
    async with running(manager):
        for resource in (CONFIG_MAPS, SECRETS):
            for name in ("unwanted", "filtered", "last"):
                await client.create(resource, {"metadata": {"name": name}}, namespace=namespace)
        expected = {
            Request(cluster, *key): 1
            for cluster in "ab"
            for key in ((namespace, "unwanted"), (namespace, "last"), ("secret", "last"))
        }
        await eventually(lambda: work.counts, lambda counts: counts == expected)
    assert (of_all, of_secrets) == ({"ConfigMap", "Secret"}, {"Secret"})


async def test_metadata_watches_deliver_metadata_and_share_an_informer(client, namespace, manager, eventually):
    """Criterion 18: objects have apiVersion, kind and metadata only; two controllers share a metadata informer."""
    seen, of_test = {"one": {}, "two": {}}, mine(namespace)

    def note(objects):
        def handler(cluster, event):
            if of_test(event):
                objects[cluster.name] = event.object
            return []

        return handler

    async def reconcile(request):
        pass

    for name, objects in seen.items():
        controller(manager).named(name).watches_metadata(CONFIG_MAPS, note(objects)).build(reconcile)
    created = await client.create(CONFIG_MAPS, config_map("x", labels={"app": "web"}), namespace=namespace)
    async with running(manager):
        await eventually(lambda: [sorted(each) for each in seen.values()], lambda names: names == [["a", "b"]] * 2)
        cluster = manager.get_cluster("a")
        assert len(cluster.cache._informers) == 1
    for objects in seen.values():
        found = objects["a"]
        assert sorted(found) == ["apiVersion", "kind", "metadata"]
        assert (found["apiVersion"], found["kind"]) == ("v1", "ConfigMap")
        assert found["metadata"]["labels"] == {"app": "web"}
        assert found["metadata"]["uid"] == created["metadata"]["uid"]


async def test_cluster_with_silent_server_does_not_delay_others(client, namespace, eventually, monkeypatch):
    """Criterion 63: healthy clusters engage and are reconciled while the API server of another cluster hangs."""
    # The time-out of the silent clusters is longer than this test.
    monkeypatch.setitem(Client.__init__.__kwdefaults__, "connect_timeout_seconds", 600.0)
    manager = Manager(None, Given(client.config), workers=4, timeout_seconds=600.0, name="test")
    work = Work()
    built = controller(manager).for_(CONFIG_MAPS, predicates(mine(namespace))).build(work.reconcile)
    await client.create(CONFIG_MAPS, config_map("x"), namespace=namespace)
    with silent_server() as silent:
        async with asyncio.timeout(90), running(manager):
            fleet = await manager.provider.fleet
            for number in range(20):
                await fleet.add_or_replace(Cluster(f"silent-{number}", config=ClusterConfig(server=silent.url)))
            await eventually(lambda: silent.reached)
            await fleet.add_or_replace(Cluster("late", config=client.config))
            await eventually(lambda: work.counts[Request("late", namespace, "x")])
            assert len(built.clusters) == 23


async def test_reconciler_reads_object_of_the_event(client, namespace, manager, eventually):
    read = []

    async def reconcile(request):
        cluster = manager.cluster_from_context()
        found = await cluster.cache.get(CONFIG_MAPS, request.name, namespace=request.namespace)
        read.append((cluster.name, found["data"]))

    controller(manager).for_(CONFIG_MAPS, predicates(mine(namespace))).build(reconcile)
    async with running(manager):
        await client.create(CONFIG_MAPS, config_map("x"), namespace=namespace)
        expected = [("a", {"key": "value"}), ("b", {"key": "value"})]
        await eventually(lambda: sorted(read), lambda found: found == expected)


async def test_named_kinds_equal_kinds_of_an_api_server(client):
    groups = {kind.split("/")[0] for kind in BUILT_IN}
    found = (await client.request("GET", "/apis"))["groups"]
    # Other tests install and remove kinds.
    versions = [each["groupVersion"] for group in found for each in group["versions"] if group["name"] in groups]
    served = {}
    for version in ["v1", *versions]:
        path = f"/{'apis' if '/' in version else 'api'}/{version}"
        for each in (await client.request("GET", path))["resources"]:
            if "watch" in each["verbs"] and "/" not in each["name"]:
                kind = f"{version}/{each['kind']}"
                served[kind] = Resource(version, each["kind"], each["name"], each["namespaced"])
    assert served == BUILT_IN


async def test_cluster_reports_how_a_kind_is_served(client, install, eventually):
    widgets = Resource("discovered.example/v1", "Widget", "widgets", namespaced=True)
    await install(widgets)
    # Discovery lists a new kind with a delay.
    await eventually(lambda: client.resource("discovered.example/v1/Widget"), lambda found: found == widgets)
    assert await client.resource("v1/Pod") == PODS
    for missing in ("discovered.example/v1/Gadget", "nobody.example/v1/Gadget"):
        with pytest.raises(NotServed, match=f"serves no {missing}"):
            await client.resource(missing)
