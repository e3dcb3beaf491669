"""Kinds by name that some clusters serve, now or later."""

from __future__ import annotations

import pytest

from kplane.provider import ClusterNotReady, Manager, NotFound, ProviderError, Request, Resource
from kplane.provider.controllers.builder import controller, engage
from kplane.provider.controllers.handlers import enqueue_owner
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.serving.metrics import ManagerMetrics, render_families
from kplane.provider.testing import FakeCluster

WIDGET = "example.com/v1/Widget"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)


@pytest.fixture
def serving(fake_cluster, monkeypatch):
    """Return a cluster that serves Widgets once `cluster.served` is set."""

    def make(name, *, served=True, namespaced=True):
        cluster = fake_cluster(name)
        cluster.served = served
        cluster.discoveries = 0

        async def request(method, path, **_):
            cluster.discoveries += 1
            assert path == "/apis/example.com/v1"
            if not cluster.served:
                raise NotFound(404, "NotFound", "no such group")
            return {"resources": [{"name": "widgets", "kind": "Widget", "namespaced": namespaced}]}

        monkeypatch.setattr(cluster.client, "request", request)
        return cluster

    return make


async def test_kind_is_watched_in_each_cluster_once_served(
    manager, work, serving, eventually, fleet, monkeypatch, caplog
):
    monkeypatch.setattr("kplane.provider.controllers.engaged._RETRY_SECONDS", 0.01)
    controller(manager).for_(WIDGET).build(work.reconcile)
    async with fleet(manager) as given:
        late, early = serving("late", served=False), serving("early")
        for cluster in (late, early):
            cluster.mirror(WIDGETS).put("w")
            await given.add_or_replace(cluster)
        await eventually(lambda: work.names("early"), lambda names: names == ["w"])
        await eventually(lambda: late.discoveries, lambda count: count > 3)
        assert work.names("late") == []
        late.served = True
        await eventually(lambda: work.names("late"), lambda names: names == ["w"])
    told = [line for line in caplog.text.splitlines() if "failed to watch" in line]
    assert len(told) == 1
    assert f"serves no {WIDGET}: apply its CustomResourceDefinition" in told[0]


@pytest.mark.parametrize(
    ("kind", "served", "remedy"),
    [
        (WIDGET, [], "apply its CustomResourceDefinition"),
        ("example.com/v1/widgets", [WIDGETS], f"the kind is written '{WIDGET}'"),
    ],
    ids=["missing CRD", "misspelled"],
)
async def test_unserved_kind_is_named_by_wait_synced_health_and_metrics(work, eventually, kind, served, remedy):
    provider, cluster = ClustersProvider(), FakeCluster("a", kinds=served)
    manager = Manager(None, provider, name="test")
    built = controller(manager).named("widgets").for_(kind).build(work.reconcile)
    async with manager:
        await provider.add(cluster)
        await eventually(lambda: cluster.health.kinds)
        assert cluster.health.state == "Ready"
        assert cluster.health.kinds.keys() == {kind}
        assert (cluster.health.kinds[kind].reason, remedy in cluster.health.kinds[kind].message) == ("NotServed", True)
        families = render_families(ManagerMetrics(manager).collect()).decode()
        assert f'multicluster_refused_kinds{{kind="{kind}",reason="NotServed"}} 1.0' in families
        with pytest.raises(ClusterNotReady, match="failed to watch") as caught:
            await built.wait_synced("a", timeout_seconds=0.01)
        assert remedy in str(caught.value)
    assert cluster.health.kinds == {}


async def test_kind_that_is_served_later_leaves_the_refused_kinds(
    manager, work, serving, eventually, fleet, monkeypatch
):
    monkeypatch.setattr("kplane.provider.controllers.engaged._RETRY_SECONDS", 0.01)
    built = controller(manager).for_(WIDGET).build(work.reconcile)
    async with fleet(manager) as given:
        late = serving("late", served=False)
        await given.add_or_replace(late)
        await eventually(lambda: WIDGET in late.health.kinds)
        late.served = True
        await built.wait_synced("late")
        assert late.health.kinds == {}


async def test_filtered_cluster_is_not_asked_for_discovery(manager, work, serving, eventually, fleet):
    built = controller(manager).for_(WIDGET, engage(filter=lambda name, _cluster: name == "a")).build(work.reconcile)
    async with fleet(manager) as given:
        clusters = {name: serving(name) for name in "ab"}
        for cluster in clusters.values():
            cluster.mirror(WIDGETS).put("w")
            await given.add_or_replace(cluster)
        await eventually(lambda: work.names("a"), lambda names: names == ["w"])
        assert built.clusters == ["a", "b"]
        assert clusters["b"].discoveries == 0


@pytest.mark.parametrize("namespaced", [True, False])
async def test_owned_objects_enqueue_owners_of_a_discovered_kind(manager, work, serving, eventually, fleet, namespaced):
    controller(manager).for_(WIDGET).owns("v1/ConfigMap").build(work.reconcile)
    async with fleet(manager) as given:
        cluster = serving("a", namespaced=namespaced)
        owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "w", "controller": True}
        cluster.maps.put("child", metadata={"ownerReferences": [owner]})
        await given.add_or_replace(cluster)
        expected = [Request("a", "ns" if namespaced else "", "w")]
        await eventually(lambda: work.asked, lambda asked: asked == expected)
        assert cluster.discoveries == 1


async def test_enqueue_owner_raises_when_the_kind_is_unknown(fake_cluster):
    cluster = fake_cluster("a")
    seen = []

    def see(event):
        with pytest.raises(ProviderError, match=r"serves example.com/v1/Widget is not known: await") as raised:
            list(enqueue_owner(WIDGET)(cluster, event))
        seen.append(raised)

    owner = {"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": "w", "controller": True}
    cluster.maps.add_handler(see)
    cluster.maps.put("child", metadata={"ownerReferences": [owner]})
    assert seen
