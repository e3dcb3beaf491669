"""Sources that a controller starts in each cluster, and managers scoped to a cluster."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import ClusterConfig, ClusterNotReady, Manager, ProviderError, Request, current_cluster
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.controllers.builder import controller, engage
from kplane.provider.controllers.handlers import Delayed, enqueue_object
from kplane.provider.controllers.sources import Channel, KindSource, Projected, SyncingClusterSource


class Ticker:
    """A source of a cluster. Adds a request of its cluster, and is synced once the request is added."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.go = asyncio.Event()
        self.synced = asyncio.Event()
        self.ended = False

    async def run(self, add):
        try:
            await self.go.wait()
            add(Request(self.cluster.name, "ticks", "x"))
            self.synced.set()
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended = True

    async def wait_synced(self):
        await self.synced.wait()


class Tickers:
    """Makes a source for each cluster but `without`."""

    def __init__(self):
        self.made = {}
        self.failures = 0

    def for_cluster(self, cluster):
        if self.failures:
            self.failures -= 1
            raise ValueError("not yet")
        if cluster.name == "without":
            return None
        ticker = self.made[cluster.name] = Ticker(cluster)
        return ticker


class SyncingTickers(Tickers):
    def syncing_for_cluster(self, cluster):
        return self.for_cluster(cluster)


async def test_source_of_each_cluster_runs_from_its_engagement_to_its_end(
    manager, work, fake_cluster, eventually, fleet, monkeypatch
):
    monkeypatch.setattr("kplane.provider.controllers.engaged._RETRY_SECONDS", 0.01)
    tickers = Tickers()
    tickers.failures = 2
    built = controller(manager).named("x").watches_raw(tickers).build(work.reconcile)
    async with fleet(manager) as given:
        for name in ("a", "b", "without"):
            await given.add_or_replace(fake_cluster(name))
        await eventually(lambda: sorted(tickers.made), lambda names: names == ["a", "b"])
        for ticker in tickers.made.values():
            ticker.go.set()
        await eventually(lambda: sorted(work.asked), lambda asked: asked == [Request(n, "ticks", "x") for n in "ab"])
        await given.remove("a")
        assert (tickers.made["a"].ended, tickers.made["b"].ended) == (True, False)
        # The controller starts another source while it runs.
        late = Tickers()
        built.watch(late, engage=engage(filter=lambda name, _: name == "b"))
        await eventually(lambda: sorted(late.made), lambda names: names == ["b"])


async def test_watch_accepts_a_channel(manager, work, eventually, fleet):
    channel = Channel()
    built = controller(manager).named("x").watches_raw(Channel()).build(work.reconcile)
    built.watch(channel)
    async with fleet(manager):
        channel.put(Request("nowhere", "ns", "x"))
        await eventually(lambda: work.asked, lambda asked: asked == [Request("nowhere", "ns", "x")])


async def test_watch_refuses_an_object_that_is_no_source(manager, work):
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    with pytest.raises(ProviderError, match=r"is no source: give it a method for_cluster\(\) or run\(\)"):
        built.watch(object())


async def test_wait_synced_waits_for_kinds_and_for_syncing_sources(manager, work, fake_cluster, eventually, fleet):
    tickers = SyncingTickers()
    assert isinstance(tickers, SyncingClusterSource)
    built = controller(manager).for_(CONFIG_MAPS).watches_raw(tickers).build(work.reconcile)
    async with fleet(manager) as given:
        await given.add_or_replace(fake_cluster("a"))
        await eventually(lambda: tickers.made)
        waiting = asyncio.create_task(built.wait_synced("a"))
        with pytest.raises(ClusterNotReady, match=r"does not know all objects of cluster 'a' after 0.01 s"):
            await built.wait_synced("a", timeout_seconds=0.01)
        assert not waiting.done()
        tickers.made["a"].go.set()
        await asyncio.wait_for(waiting, 60)
        assert work.names("a") == ["x"]


async def test_wait_synced_ends_with_its_cluster(manager, work, fake_cluster, eventually, fleet):
    tickers = SyncingTickers()
    built = controller(manager).named("x").watches_raw(tickers).build(work.reconcile)
    async with fleet(manager) as given:
        with pytest.raises(ClusterNotReady, match="does not work on cluster 'a'"):
            await built.wait_synced("a")
        await given.add_or_replace(fake_cluster("a"))
        await eventually(lambda: tickers.made)
        waiting = asyncio.create_task(built.wait_synced("a", timeout_seconds=3600))
        await asyncio.sleep(0)
        await given.remove("a")
        with pytest.raises(ClusterNotReady, match="the work of x on cluster a has ended"):
            await asyncio.wait_for(waiting, 60)


async def test_projection_chooses_by_cluster_how_a_kind_is_watched(manager, work, fake_cluster, eventually, fleet):
    def project(cluster, given):
        return Projected(SECRETS, metadata_only=True) if cluster.name == "a" else given

    built = controller(manager).named("x").watches_raw(Channel()).build(work.reconcile)
    built.watch(KindSource(CONFIG_MAPS, enqueue_object()).with_projection(project))
    async with fleet(manager) as given:
        clusters = {name: fake_cluster(name) for name in "ab"}
        for cluster in clusters.values():
            await given.add_or_replace(cluster)
        await eventually(lambda: [each.asked for each in clusters.values()], all)
        assert clusters["a"].asked == [("Secret", True)]
        assert clusters["b"].asked == [("ConfigMap", False)]


async def test_projection_that_raises_delays_only_its_source(
    manager, work, fake_cluster, eventually, fleet, monkeypatch
):
    monkeypatch.setattr("kplane.provider.controllers.engaged._RETRY_SECONDS", 0.01)
    failures = [1, 2, 3]

    def project(_, given):
        if failures:
            failures.pop()
            raise ValueError("odd")
        return given

    built = controller(manager).for_(SECRETS).build(work.reconcile)
    built.watch(KindSource(CONFIG_MAPS, enqueue_object()).with_projection(project))
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        cluster.maps.put("map")
        cluster.mirror(SECRETS).put("secret")
        await given.add_or_replace(cluster)
        await eventually(lambda: sorted(work.names("a")), lambda names: names == ["map", "secret"])


@pytest.mark.parametrize("method", ["for_cluster", "syncing_for_cluster"])
async def test_source_of_one_cluster_runs_without_a_controller(fake_cluster, eventually, method):
    source = KindSource(CONFIG_MAPS, enqueue_object(), (lambda event: event.name != "other",))
    cluster, added = fake_cluster("a"), []
    for name in ("x", "other"):
        cluster.maps.put(name)
    of_cluster = getattr(source, method)(cluster)
    with pytest.raises(ClusterNotReady, match=r"are not known after 0.01 s"):
        await of_cluster.wait_synced(timeout_seconds=0.01)
    running = asyncio.create_task(of_cluster.run(added.append))
    await asyncio.wait_for(of_cluster.wait_synced(), 60)
    assert added == [Request("a", "ns", "x")]
    running.cancel()
    await asyncio.wait([running])
    assert cluster.maps.handlers == []


async def test_source_of_one_cluster_adds_a_request_at_its_earliest_delay(fake_cluster, eventually):
    request, added, delays = Request("a", "ns", "together"), [], {"x": 600.0, "y": 0.01, "z": 600.0}
    source = KindSource(CONFIG_MAPS, lambda _, event: [Delayed(request, delays[event.name])])
    cluster = fake_cluster("a")
    for name in delays:
        cluster.maps.put(name)
    running = asyncio.create_task(source.for_cluster(cluster).run(added.append))
    await eventually(lambda: added, lambda found: found == [request])
    running.cancel()
    await asyncio.wait([running])


async def test_cluster_source_skips_a_cluster_that_it_excludes(fake_cluster):
    source = KindSource(CONFIG_MAPS, enqueue_object(), engage=engage(filter=lambda name, _: name == "a"))
    assert source.for_cluster(fake_cluster("b")) is None
    assert source.for_cluster(fake_cluster("a")) is not None


async def test_controller_of_a_scoped_manager_watches_its_cluster_alone(manager, fake_cluster, eventually, fleet):
    seen = []

    async def reconcile(request, cluster):
        seen.append((request, cluster.name, current_cluster()))

    built = controller(manager.scoped("a")).for_(CONFIG_MAPS).build(reconcile)
    async with fleet(manager) as given:
        for name in ("b", "a"):
            cluster = fake_cluster(name)
            cluster.maps.put("x")
            await given.add_or_replace(cluster)
        await eventually(lambda: seen, lambda found: found == [(Request("a", "ns", "x"), "a", "a")])
        assert cluster.asked
        assert manager.get_cluster("b").asked == []
    assert (built.name, manager.controllers) == ("configmap-a", {"configmap-a": built})


async def test_controllers_of_two_scoped_managers_have_distinct_names(manager, work):
    built = [controller(manager.scoped(name)).for_(CONFIG_MAPS).build(work.reconcile) for name in "ab"]
    assert [each.name for each in built] == ["configmap-a", "configmap-b"]


async def test_controller_of_the_local_scope_watches_only_local_cluster(given, work, fake_cluster):
    manager = Manager(ClusterConfig("https://127.0.0.1:1"), given(), name="test")
    built = controller(manager.scoped("")).for_(CONFIG_MAPS).build(work.reconcile)
    assert built._wants(engage(), manager.local)
    assert not built._wants(engage(), fake_cluster("a"))
    assert built.name == "configmap-local"


async def test_controller_scoped_to_a_missing_local_cluster_is_refused(manager, work):
    with pytest.raises(ProviderError, match="the manager has no local cluster"):
        controller(manager.scoped("")).for_(CONFIG_MAPS).build(work.reconcile)


async def test_controller_of_another_managers_scope_is_refused(manager, given, work):
    built = controller(manager.scoped("a")).for_(CONFIG_MAPS).build(work.reconcile)
    with pytest.raises(ProviderError, match="was made for another manager"):
        Manager(None, given(), name="test").add(built)
