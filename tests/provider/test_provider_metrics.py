"""The HTTP endpoints of a manager: metrics without series of removed clusters, health and readiness."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from kplane.provider import (
    Client,
    Cluster,
    ClusterConfig,
    Election,
    Lease,
    Manager,
    ProviderError,
    Request,
    Result,
    Unreachable,
)
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import controller
from kplane.provider.controllers.multicluster import MulticlusterController
from kplane.provider.controllers.sources import Channel
from kplane.provider.coordination.leader import Leader
from kplane.provider.coordination.sharded import Sharded
from kplane.provider.errors import NotServed
from kplane.provider.providers.file import FileProvider
from kplane.provider.providers.multi import MultiProvider
from kplane.provider.providers.single import SingleProvider
from kplane.provider.serving.http import Serving
from kplane.provider.serving.metrics import ManagerMetrics, render_families


class Told:
    """A provider of the clusters that the test gives it."""

    name = "told"

    async def run(self, fleet):
        self.fleet = fleet
        await asyncio.Event().wait()


class Requests:
    """A raw source of the requests that the test puts into it."""

    def __init__(self):
        self.put = asyncio.Queue()

    async def run(self, add):
        while True:
            add(await self.put.get())


def cluster(name):
    return Cluster(name, config=ClusterConfig("https://127.0.0.1:1"))


async def samples(metrics):
    found = {}
    for family in text_string_to_metric_families(render_families(metrics.collect()).decode()):
        for sample in family.samples:
            found[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    return found


@pytest.fixture
async def at_work(eventually):
    """A manager with clusters a and b, and a controller that fails for objects called `bad`."""
    provider, requests = Told(), Requests()
    manager = Manager(None, provider, name="test")

    async def reconcile(request):
        if request.name == "bad":
            raise ValueError("bad")

    controller(manager).named("builder").watches_raw(requests).build(reconcile)
    async with manager:
        await eventually(lambda: hasattr(provider, "fleet"))
        for name in ("a", "b"):
            await provider.fleet.add_or_replace(cluster(name))
        yield SimpleNamespace(manager=manager, fleet=provider.fleet, requests=requests)


async def test_reconciles_are_counted_by_controller_and_by_cluster(at_work, eventually):
    """Criterion 73: metrics of a reconcile carry the cluster, and histograms do not."""
    for request in (Request("a", "n", "good"), Request("b", "n", "bad")):
        at_work.requests.put.put_nowait(request)
    metrics = ManagerMetrics(at_work.manager)

    async def counted():
        found = await samples(metrics)
        by_cluster = "multicluster_reconcile_total"
        assert found[by_cluster, (("cluster", "a"), ("controller", "builder"), ("result", "success"))] == 1
        assert found[by_cluster, (("cluster", "b"), ("controller", "builder"), ("result", "error"))] >= 1
        assert found["controller_runtime_reconcile_total", (("controller", "builder"), ("result", "success"))] == 1
        assert found["controller_runtime_reconcile_errors_total", (("controller", "builder"),)] >= 1
        assert found["controller_runtime_reconcile_time_seconds_count", (("controller", "builder"),)] >= 2
        return True

    await eventually(counted)
    await at_work.fleet.remove("b")
    found = await samples(metrics)
    assert not [labels for _, labels in found if ("cluster", "b") in labels], (
        "nothing is told of a cluster that is gone"
    )
    assert found["controller_runtime_reconcile_errors_total", (("controller", "builder"),)] >= 1, "totals stay"


async def test_controller_added_by_hand_has_metrics_and_a_unique_name(at_work, eventually):
    release = asyncio.Event()
    release.set()

    async def reconcile(request):
        await release.wait()

    manager, requests = at_work.manager, Requests()
    by_hand = MulticlusterController("by hand", reconcile, manager=manager)
    by_hand.watch(requests)
    manager.add(by_hand)
    requests.put.put_nowait(Request("a", "n", "x"))
    await eventually(lambda: by_hand.stats.reconciles, lambda counts: counts == {"success": 1})
    release.clear()
    for name in ("first", "second", "third"):
        requests.put.put_nowait(Request("a", "n", name))
    await eventually(lambda: by_hand.queue.depths().get("a") == 2)
    found = await samples(ManagerMetrics(manager))
    assert found["multicluster_queue_depth", (("cluster", "a"), ("controller", "by hand"))] == 2
    assert found["workqueue_depth", (("controller", "by hand"), ("name", "by hand"))] == 2
    release.set()
    labels = (("controller", "by hand"), ("result", "success"))
    assert found["controller_runtime_reconcile_total", labels] == 1
    for name in ("by hand", "builder"):
        with pytest.raises(ProviderError, match="another name"):
            manager.add(MulticlusterController(name, reconcile, manager=manager))
    assert sorted(manager.controllers) == ["builder", "by hand"]
    assert manager.controllers["by hand"] is by_hand


async def test_clusters_are_counted_by_provider_and_state(at_work, eventually):
    informer = at_work.manager.get_cluster("a").cache.informer(CONFIG_MAPS)
    metrics = ManagerMetrics(at_work.manager)

    async def counted():
        found = await samples(metrics)
        state = "multicluster_clusters"
        assert found[state, (("provider", "told"), ("state", "Unreachable"))] == 1
        assert found[state, (("provider", "told"), ("state", "Ready"))] == 1
        assert found["multicluster_cluster_ready", (("cluster", "a"),)] == 0
        assert found["multicluster_cluster_ready", (("cluster", "b"),)] == 1
        assert found["multicluster_owned_clusters", ()] == 2
        assert found["multicluster_cache_bytes", (("cluster", "a"), ("kind", "ConfigMap"))] == informer.size_bytes
        restarts = "multicluster_watch_restarts_total"
        assert found[restarts, (("cluster", "a"), ("reason", "unreachable"))] >= 1
        # The controller engaged both clusters.
        assert found["multicluster_engage_seconds_count", ()] == 2
        return True

    await eventually(counted)


async def test_metrics_omit_cluster_labels_on_request(at_work):
    _ = at_work.manager.get_cluster("a").cache.informer(CONFIG_MAPS)
    found = await samples(ManagerMetrics(at_work.manager, cluster_labels=False))
    assert not [name for name, labels in found if dict(labels).get("cluster")]
    assert found["multicluster_cache_bytes", (("kind", "ConfigMap"),)] == 0


async def test_lease_statistics_of_a_coordinator_are_metrics():
    async with Client(ClusterConfig("https://127.0.0.1:1")) as client:
        found = await samples(
            ManagerMetrics(
                Manager(None, coordinator=Sharded(client, identity="x", fence="shard", shards=64), name="test")
            )
        )
        assert found["multicluster_fences", (("state", "owned"),)] == 0
        assert found["multicluster_lease_events_total", (("event", "lost"),)] == 0
        assert ("multicluster_peers", ()) in found
        leader = Leader(Election(Lease(client, name="x", namespace="default", identity="x")))
        assert (await samples(ManagerMetrics(Manager(None, coordinator=leader, name="test"))))[
            "multicluster_leading", ()
        ] == 0


async def test_manager_is_ready_when_its_provider_has_synced(tmp_path, eventually):
    told = MultiProvider()
    told.add_provider("given", SingleProvider(Cluster("a", config=ClusterConfig("https://127.0.0.1:1"))))
    assert told.has_synced(), "one that does not tell is waited for"
    told.add_provider("files", FileProvider(files=[tmp_path / "late"]))
    manager = Manager(None, told, name="test")
    why = "the provider multi has not read all that stands for clusters; see the log"
    assert await manager.ready_checks.run() == {"provider": why}
    async with manager:
        await eventually(manager.ready_checks.run, lambda found: found == {"provider": None})
        told.add_provider("more", FileProvider(files=[tmp_path / "more"], interval_seconds=3600))
        assert await manager.ready_checks.run() == {"provider": None}, "what is added later makes it unready"


async def test_serving_answers_probes_and_metrics_while_manager_runs(eventually):
    manager = Manager(ClusterConfig("https://127.0.0.1:1"), name="test")
    serving = Serving(manager, port=0)
    well = asyncio.Event()

    others = []

    async def check():
        if not well.is_set():
            raise ValueError("not warm yet")

    async def other():
        others.append(well.is_set())
        return "standby"

    manager.add_ready_check("warm", check)
    manager.add_ready_check("beside", other)
    manager.add(serving)
    async with aiohttp.ClientSession() as session:

        async def ask(path):
            host, port = serving.address
            async with session.get(f"http://{host}:{port}{path}") as answer:
                return answer.status, await answer.text()

        async with manager:
            await serving.listening.wait()
            # The local cluster is unreachable. A restart of the process would not help.
            _ = manager.local.cache.informer(CONFIG_MAPS)
            assert await ask("/healthz") == (200, "ok")
            verbose = "[+]ping ok\n[+]manager ok\n[-]warm failed: not warm yet\n[+]beside ok: standby\n"
            verbose += "readyz check failed\n"
            assert await ask("/readyz") == (500, verbose)
            others.clear()
            assert await ask("/readyz/warm") == (500, "not warm yet\n")
            assert await ask("/readyz/manager") == (200, "ok")
            assert (await ask("/readyz/other"))[0] == 404
            assert others == []
            well.set()
            assert await ask("/readyz") == (200, "ok")
            assert (await ask("/readyz?verbose"))[1].endswith("[+]beside ok: standby\nreadyz check passed\n")
            status, text = await ask("/metrics")
            assert status == 200
            assert "multicluster_owned_clusters 1.0" in text
            assert "process_resident_memory_bytes" in text

            async def slow_end():
                assert (await ask("/readyz"))[0] == 500, "one that is about to end is sent nothing more"
                slow_end.seen = True

            for engagement in manager.clusters.engagements():
                engagement.on_close(slow_end)
        assert slow_end.seen
        with pytest.raises(ProviderError, match="does not listen"):
            _ = serving.address


class Jobs(Collector):
    """A collector of a program. It notes whether it is collected in the loop."""

    in_loop = False

    def collect(self):
        self.in_loop = asyncio.get_running_loop() is not None
        yield GaugeMetricFamily("jobs", "Jobs that wait.", value=3)
        yield GaugeMetricFamily("multicluster_owned_clusters", "Of another meaning.", value=77)


async def test_serving_adds_metrics_and_routes_of_the_program(caplog):
    registry, jobs = CollectorRegistry(), Jobs()
    Counter("photos", "Photos that were stored.", registry=registry).inc(5)
    ProcessCollector(registry=registry)

    async def show(request):
        return web.Response(text="shown")

    manager = Manager(None, name="test")
    routes = [web.get("/debug", show), web.post("/jobs", show)]
    serving = Serving(manager, port=0, registry=registry, collectors=[jobs], routes=routes)
    manager.add(serving)
    async with manager, aiohttp.ClientSession() as session:
        await serving.listening.wait()
        url = "http://{}:{}".format(*serving.address)
        for _ in range(2):
            async with session.get(f"{url}/metrics") as answer:
                text = await answer.text()
        async with session.get(f"{url}/debug") as debug, session.post(f"{url}/jobs") as posted:
            assert (await debug.text(), await posted.text()) == ("shown", "shown")
    lines = text.splitlines()
    assert "photos_total 5.0" in lines
    assert "jobs 3.0" in lines
    assert jobs.in_loop
    assert "multicluster_owned_clusters 0.0" in lines
    assert lines.count("# TYPE process_cpu_seconds_total counter") == 1
    assert caplog.text.count("leaves out a second metric named multicluster_owned_clusters") == 1


@pytest.mark.parametrize("path", ["/metrics", "/healthz", "/readyz/mine", "/readyz"])
def test_serving_refuses_reserved_routes(path):
    with pytest.raises(ProviderError, match=f"failed to add route '{path}'"):
        Serving(Manager(None, name="test"), routes=[web.get(path, None)])


async def test_work_queue_metrics_have_client_go_names(eventually):
    gate, channel = asyncio.Event(), Channel()
    manager = Manager(None, Told(), name="test")

    async def reconcile(request):
        await gate.wait()
        return Result(requeue_after_seconds=3600)

    built = controller(manager).named("x").watches_raw(channel).with_options(timeout_seconds=60).build(reconcile)
    metrics = ManagerMetrics(manager, cluster_labels=False)
    queue = (("controller", "x"), ("name", "x"))
    async with manager:
        channel.put(Request("a", "", "x"))
        await eventually(lambda: built.under_way)
        found = await eventually(
            lambda: samples(metrics),
            lambda found: found["workqueue_longest_running_processor_seconds", queue] > 0,
        )
        assert found["workqueue_unfinished_work_seconds", queue] > 0
        assert found["workqueue_adds_total", queue] == 1
        assert found["workqueue_retries_total", queue] == 0
        gate.set()
        await eventually(lambda: built.queue.retries == 1)
        built.stats.dropped["gone"] += 3
        found = await samples(metrics)
    assert found["workqueue_retries_total", queue] == 1
    assert found["workqueue_unfinished_work_seconds", queue] == 0
    assert found["workqueue_longest_running_processor_seconds", queue] == 0
    assert found["controller_runtime_reconcile_timeouts_total", (("controller", "x"),)] == 0
    assert found["multicluster_dropped_requests_total", (("controller", "x"), ("reason", "gone"))] == 3
    assert found["multicluster_dropped_requests_total", (("controller", "x"), ("reason", "refused"))] == 0


class Refusing:
    async def engage(self, engagement):
        raise ValueError("odd")


async def test_requests_kind_errors_and_failed_engagements_are_counted(fault_server, tools, eventually):
    async def answer(asked, writer):
        writer.write(tools.http({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404))

    serving = await fault_server(answer)
    provider = Told()
    manager = Manager(None, provider, awares=[Refusing()], name="test")
    metrics = ManagerMetrics(manager)
    async with manager:
        await eventually(lambda: hasattr(provider, "fleet"))
        found = Cluster("a", config=serving.config)
        await provider.fleet.add_or_replace(found)
        with pytest.raises(NotServed):
            await found.cache.list(CONFIG_MAPS)
        await eventually(lambda: manager.clusters.engage_failures)
        seen = await samples(metrics)
        await provider.fleet.add_or_replace(cluster("unreachable"))
        with pytest.raises(Unreachable):
            await manager.get_cluster("unreachable").client.get(CONFIG_MAPS, "x", namespace="y")
        after = await samples(metrics)
    refused = (("kind", "v1/ConfigMap"), ("reason", "NotServed"))
    assert seen["multicluster_refused_kinds", refused] == 1
    assert seen["rest_client_requests_total", (("code", "404"), ("method", "GET"))] >= 1
    assert seen["multicluster_engage_failures_total", ()] >= 1
    assert after["rest_client_requests_total", (("code", "<error>"), ("method", "GET"))] >= 1
