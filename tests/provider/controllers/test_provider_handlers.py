"""Handlers: the requests that events enqueue."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import Manager, ObjectKey, ProviderError, Request
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.controllers.builder import controller, every_owner, predicates
from kplane.provider.controllers.handlers import Delayed, enqueue_mapped, enqueue_object, enqueue_owner
from kplane.provider.controllers.predicates import in_namespaces, on_events
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, SteeredLoop


@pytest.fixture
def steered():
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


async def test_mapped_requests_get_the_cluster_of_the_event(manager, work, fake_cluster, eventually, fleet):
    """Criterion 32: mapped requests get the cluster of the event, or keep their own with preserve_cluster."""

    def fan_out(cluster, found):
        return [Request(name, "", found["metadata"]["name"]) for name in ("a", "b")]

    built = (
        controller(manager)
        .named("x")
        .watches(CONFIG_MAPS, enqueue_mapped(fan_out))
        .watches(SECRETS, enqueue_mapped(fan_out, preserve_cluster=True))
        .build(work.reconcile)
    )
    async with fleet(manager) as given:
        clusters = [fake_cluster(name) for name in ("a", "b")]
        for member in clusters:
            await given.add_or_replace(member)
        await eventually(lambda: built.clusters, lambda names: len(names) == 2)
        clusters[0].maps.put("mapped")
        clusters[0].mirror(SECRETS).put("preserved")
        expected = [Request("a", "", "mapped"), Request("a", "", "preserved"), Request("b", "", "preserved")]
        await eventually(lambda: sorted(work.asked), lambda asked: asked == expected)


def test_delayed_request_is_reconciled_when_due(steered):
    async def scenario():
        fleet, one, seen = ClustersProvider(), FakeCluster("one"), []
        loop = asyncio.get_running_loop()

        async def reconcile(request):
            seen.append((request.name, round(loop.time() - began)))

        def handler(cluster, event):
            yield Delayed(Request(cluster.name, event.namespace, "hour"), 3600)
            yield Delayed(Request(cluster.name, event.namespace, "minute"), 60)
            yield Request(cluster.name, event.namespace, "now")

        def mapped(cluster, found):
            return [Delayed(ObjectKey("x", "key"), 30), Delayed(Request("elsewhere", "x", "request"), 90)]

        manager = Manager(None, fleet, name="test")
        builder = controller(manager).named("x").watches(SECRETS, handler)
        builder.watches(SECRETS, enqueue_mapped(mapped)).build(reconcile)
        async with manager:
            await fleet.add(one)
            await one.cache.list(SECRETS)
            began = loop.time()
            await one.client.create(SECRETS, {"metadata": {"name": "s", "namespace": "default"}})
            await asyncio.sleep(7200)
        return seen

    assert steered(scenario()) == [("now", 0), ("key", 30), ("minute", 60), ("request", 90), ("hour", 3600)]


def test_enqueue_mapped_refuses_a_coroutine_function():
    async def fan_out(cluster, found):
        return []

    with pytest.raises(ProviderError, match="coroutine function"):
        enqueue_mapped(fan_out)


def owner(kind, name, *, controlling=False, api_version="apps/v1"):
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": controlling}


async def test_owned_objects_enqueue_controller_or_every_owner(manager, fake_cluster, eventually, fleet, new_work):
    """Criterion 15: an owned object's event reconciles its controller owner; every_owner reconciles every owner."""
    one, every = new_work(), new_work()
    controller(manager).for_("apps/v1/Deployment").owns(CONFIG_MAPS).build(one.reconcile)
    builder = controller(manager).named("every").for_("apps/v1/Deployment").owns(CONFIG_MAPS, every_owner())
    builder.build(every.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        owners = [
            owner("Deployment", "controls", controlling=True, api_version="apps/v1beta2"),
            owner("Deployment", "owns"),
            owner("Deployment", "of-another-group", controlling=True, api_version="example.com/v1"),
            owner("StatefulSet", "of-another-kind", controlling=True),
        ]
        cluster.maps.put("x", metadata={"ownerReferences": owners})
        await eventually(lambda: sorted(every.names("a")), lambda names: names == ["controls", "owns"])
        await eventually(lambda: one.asked, lambda asked: asked == [Request("a", "ns", "controls")])
        cluster.maps.put("x", metadata={"ownerReferences": [owner("Deployment", "new", controlling=True)]})
        await eventually(lambda: sorted(one.names("a")), lambda names: names == ["controls", "controls", "new"])


@pytest.mark.parametrize("references", [None, "odd", [1, None], [{"kind": "Node", "name": None}], {}])
def test_enqueue_owner_ignores_malformed_owner_references(references, fake_cluster):
    seen = []
    cluster = fake_cluster("a")
    handler = enqueue_owner("v1/Node", every_owner=True)
    cluster.maps.add_handler(lambda event: seen.extend(handler(cluster, event)))
    cluster.maps.put("x", metadata={"ownerReferences": references})
    cluster.maps.put("x", metadata={"ownerReferences": [owner("Node", "n", api_version="v1")]})
    assert Request("a", "", "n") in seen


async def test_kind_and_global_predicates_must_both_pass(manager, work, fake_cluster, eventually, fleet):
    """Criterion 17: a per-input predicate sees only its kind; the global filter sees all; both must pass."""
    of_all, of_secrets = [], []

    def note(seen, wanted):
        return lambda event: seen.append((event.resource.kind, event.name)) or event.name != wanted

    built = (
        controller(manager)
        .for_(CONFIG_MAPS)
        .watches(SECRETS, enqueue_object(), predicates(note(of_secrets, "not-in-one")))
        .with_filter(in_namespaces("ns"), note(of_all, "not-at-all"))
        .build(work.reconcile)
    )
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        for resource in (CONFIG_MAPS, SECRETS):
            for name in ("yes", "not-at-all", "not-in-one"):
                cluster.mirror(resource).put(name)
        cluster.mirror(SECRETS).put("elsewhere", namespace="other")
        await eventually(lambda: built.queue.idle and len(work.asked) >= 2)
    assert set(work.names("a")) == {"yes", "not-in-one"}
    assert set(of_secrets) == {("Secret", "yes"), ("Secret", "not-in-one")}
    assert len(of_all) == 6


async def test_filtered_events_enqueue_nothing(manager, work, fake_cluster, eventually, fleet):
    built = controller(manager).for_(CONFIG_MAPS, predicates(on_events(deleted=False))).build(work.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        cluster.maps.put("x")
        await eventually(lambda: work.asked)
        cluster.maps.remove("x")
        await asyncio.sleep(0.01)
        assert len(work.asked) == 1
