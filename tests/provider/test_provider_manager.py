"""The manager: providers that fail, and an end that leaves no task."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import (
    LOCAL,
    Cluster,
    ClusterConfig,
    ClusterNotFound,
    Manager,
    ProviderError,
    Request,
    single_cluster,
)
from kplane.provider.cluster.context import cluster_context
from kplane.provider.manager.checks import Checks


def cluster(name):
    return Cluster(name, config=ClusterConfig("https://127.0.0.1:1"))


class Fixed:
    """A provider that adds the first clusters, fails some times, and then adds the others."""

    name = "fixed"

    def __init__(self, *names, failures=0):
        self.names, self.failures, self.runs = names, failures, 0

    async def run(self, clusters):
        self.runs += 1
        await clusters.add_or_replace(cluster(self.names[0]))
        if self.runs <= self.failures:
            raise ValueError("odd")
        for name in self.names[1:]:
            await clusters.add_or_replace(cluster(name))


class Aware:
    def __init__(self):
        self.log = []

    async def engage(self, engagement):
        name = engagement.cluster.name
        self.log.append(("open", name))

        async def close():
            await asyncio.sleep(0.01)
            self.log.append(("close", name))

        engagement.on_close(close)
        engagement.spawn(asyncio.sleep(3600), name="work")


async def test_manager_engages_clusters_and_closes_them_at_its_end(eventually):
    early, late = Aware(), Aware()
    manager = Manager(None, Fixed("a", "b"), awares=[early], name="test")
    stop = asyncio.Event()
    running = asyncio.create_task(manager.run(stop))
    await eventually(manager.cluster_names, lambda names: names == ["a", "b"])
    manager.add(late)
    await eventually(lambda: sorted(late.log), lambda log: log == [("open", "a"), ("open", "b")])
    assert manager.get_cluster("a").name == "a"
    stop.set()
    await asyncio.wait_for(running, 60)
    for aware in (early, late):
        assert sorted(aware.log) == [("close", "a"), ("close", "b"), ("open", "a"), ("open", "b")]
    with pytest.raises(ClusterNotFound):
        manager.get_cluster("a")
    assert asyncio.all_tasks() == {asyncio.current_task()}
    with pytest.raises(ProviderError, match="make another one"):
        await manager.run(stop)


async def test_failed_provider_is_restarted_and_clusters_stay_engaged(eventually):
    aware = Aware()
    async with Manager(None, Fixed("a", "b", failures=1), awares=[aware], name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["a", "b"])
        await eventually(lambda: aware.log, lambda log: ("open", "b") in log)
        assert aware.log == [("open", "a"), ("open", "b")]


async def test_cancelled_manager_closes_engagements(eventually):
    aware = Aware()
    running = asyncio.create_task(Manager(None, Fixed("a"), awares=[aware], name="test").run(asyncio.Event()))
    await eventually(lambda: aware.log)
    running.cancel()
    await asyncio.wait([running])
    assert aware.log == [("open", "a"), ("close", "a")]


async def test_get_cluster_raises_by_cause_for_a_missing_cluster(eventually):
    """Criterion 29: "" is the local cluster; unknown cluster, no provider and no context are distinct errors."""
    config = ClusterConfig("https://127.0.0.1:1")
    async with Manager(config, Fixed("a"), name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["a"])
        assert manager.get_cluster("") is manager.local
        assert manager.get_cluster("a").name == "a"
        with pytest.raises(ClusterNotFound, match="'b'"):
            manager.get_cluster("b")
        with pytest.raises(ProviderError, match="no reconcile is under way"):
            manager.cluster_from_context()
        with cluster_context("a"):
            assert manager.cluster_from_context() is manager.get_cluster("a")
    alone = Manager(config, name="test")
    with pytest.raises(ProviderError, match="no multicluster provider") as caught:
        alone.get_cluster("a")
    assert not isinstance(caught.value, ClusterNotFound)
    with pytest.raises(ProviderError, match="no local cluster"):
        Manager(None, Fixed("a"), name="test").get_cluster("")


async def test_single_cluster_reconciler_reads_cluster_from_context(eventually):
    """Criterion 30: the reconciler receives namespace and name, and depends on no fleet."""
    seen = []
    async with Manager(None, Fixed("a", "b"), name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["a", "b"])

        async def reconcile(key):
            seen.append((manager.cluster_from_context().name, *key))

        for name in ("a", "b"):
            await single_cluster(reconcile)(Request(name, "ns", "x"))
    assert seen == [("a", "ns", "x"), ("b", "ns", "x")]


def test_requests_print_as_upstream_and_compare_by_value():
    """Criterion 31: the same key in two clusters is two requests."""
    assert str(Request("a", "ns", "n")) == "cluster://a/ns/n"
    assert str(Request(LOCAL, "ns", "n")) == "ns/n"
    assert len({Request("a", "ns", "n"), Request("a", "ns", "n"), Request("b", "ns", "n")}) == 2


class Endless:
    """Runs until cancelled; fails at first."""

    def __init__(self):
        self.runs, self.running = 0, False

    async def run(self):
        self.runs += 1
        if self.runs == 1:
            raise ValueError("odd")
        self.running = True
        try:
            await asyncio.Event().wait()
        finally:
            self.running = False


async def test_scoped_manager_reads_its_member_and_adds_to_the_host(eventually):
    """Criterion 33: runnables start with the manager or while the manager runs, and restart after a failure."""
    async with Manager(ClusterConfig("https://127.0.0.1:1"), Fixed("a"), name="test") as manager:
        await eventually(manager.cluster_names, lambda names: names == ["a"])
        scoped = manager.scoped("a")
        assert scoped.cluster is manager.get_cluster("a")
        assert scoped.config is scoped.cluster.config
        assert scoped.client is scoped.cluster.client
        assert scoped.cache is scoped.cluster.cache
        assert scoped.recorder("me") is scoped.cluster.recorder("me")
        endless = Endless()
        scoped.add(endless)
        await eventually(lambda: endless.running)
        with pytest.raises(ProviderError, match="none of engage"):
            scoped.add("nothing")
        scoped.add_ready_check("scoped", well)
        scoped.add_health_check("scoped", well)
        assert await manager.ready_checks.run() == await manager.health_checks.run() == {"scoped": None}
        scoped.index_field("v1/Secret", "type", lambda secret: [secret["type"]])
        with pytest.raises(ProviderError, match="index"):
            scoped.cache.index_field("v1/Secret", "type", lambda _secret: [])
    assert (endless.runs, endless.running) == (2, False)


async def well():
    """Pass the check."""


async def test_checks_return_the_failure_of_each_check():
    checks = Checks(timeout_seconds=0.05)

    async def unwell():
        raise ValueError("no room")

    checks.add("well", well)
    checks.add("unwell", unwell)
    checks.add("silent", asyncio.Event().wait)
    with pytest.raises(ProviderError, match="already"):
        checks.add("well", well)
    assert await checks.run() == {"well": None, "unwell": "no room", "silent": "no answer within 0.05 s"}


class Tidy:
    """A provider of a cluster. Each run removes all clusters and adds this cluster. The first run fails then."""

    name = "tidy"

    def __init__(self):
        self.seen = []

    async def run(self, fleet):
        self.seen.append(fleet.names())
        for name in fleet.names():
            await fleet.remove(name)
        await fleet.add_or_replace(Cluster("found", config=ClusterConfig("https://127.0.0.1:1")))
        if len(self.seen) < 2:
            raise ValueError("odd")
        await asyncio.Event().wait()


async def test_clusters_of_the_program_stay_beside_provider_clusters(eventually):
    provider = Tidy()
    manager = Manager(None, provider, name="test")
    await manager.clusters.add_or_replace(Cluster("mine", config=ClusterConfig("https://127.0.0.1:1")))
    async with manager:
        await eventually(lambda: provider.seen, lambda seen: seen == [[], ["found"]])
        await eventually(manager.cluster_names, lambda names: names == ["found", "mine"])
        assert manager.get_cluster("mine").name == "mine"
