"""Controllers of a fleet: new clusters are reconciled, removed clusters leave no state, clusters are independent."""

from __future__ import annotations

import asyncio
import logging

from kplane.provider import Request, Result, Unreachable, current_cluster, logs, single_cluster
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.controllers.builder import controller, engage
from kplane.provider.controllers.handlers import enqueue_object
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.sources import KindSource


async def test_second_engage_of_an_engagement_adds_no_handler(manager, work, fake_cluster, eventually):
    """Criterion 22: engaging an instance twice registers a single handler, so each event causes a single reconcile."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    engagement = Engagement(fake_cluster("a"), generation=1)
    async with manager:
        await built.engage(engagement)
        await built.engage(engagement)
        assert len(engagement.cluster.maps.handlers) == 1
        engagement.cluster.maps.put("x")
        await eventually(lambda: built.queue.idle and work.asked)
        assert work.asked == [Request("a", "ns", "x")]
        await engagement.aclose()


async def test_new_engagement_of_a_name_stops_old_handlers_first(manager, work, fake_cluster, eventually):
    """Criterion 23: engaging a new instance under the same name stops the old handlers first."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    old, new = (Engagement(fake_cluster("a", generation=number), generation=number) for number in (1, 2))
    handlers_at_start = []
    mirror = new.cluster.maps
    add = mirror.add_handler
    mirror.add_handler = lambda handler: (handlers_at_start.append(len(old.cluster.maps.handlers)), add(handler))[1]
    async with manager:
        await built.engage(old)
        await built.engage(new)
        old.cluster.maps.put("old")
        new.cluster.maps.put("new")
        await eventually(lambda: work.asked)
        await old.aclose()
        new.cluster.maps.put("newer")
        await eventually(lambda: len(work.asked), lambda count: count == 2)
        assert work.names("a") == ["new", "newer"]
        assert handlers_at_start == [0]
        await new.aclose()


async def test_late_watch_starts_in_engaged_clusters(manager, work, fake_cluster, eventually, fleet):
    """Criterion 24: a watch added after engagement starts in engaged clusters and in later clusters."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with fleet(manager) as given:
        early, late = fake_cluster("a"), fake_cluster("b")
        await given.add_or_replace(early)
        await eventually(lambda: built.clusters, lambda names: names == ["a"])
        early.mirror(SECRETS).put("before")
        built.watch(KindSource(SECRETS, enqueue_object()))
        await given.add_or_replace(late)
        await eventually(lambda: built.clusters, lambda names: names == ["a", "b"])
        late.mirror(SECRETS).put("after")
        expected = {Request("a", "ns", "before"), Request("b", "ns", "after")}
        await eventually(lambda: set(work.asked), lambda asked: asked == expected)


async def test_late_controller_receives_engaged_clusters(manager, work, fake_cluster, eventually, fleet):
    """Criterion 66: a controller added after engagement gets all engaged clusters, and runs."""
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("x")
        controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
        await eventually(lambda: work.asked, lambda asked: asked == [Request("a", "ns", "x")])


async def test_removed_cluster_leaves_no_state_in_the_controller(manager, work, fake_cluster, eventually, fleet):
    """Criterion 27: after removal no event of that cluster enqueues; its entry is gone from the controller."""
    built = controller(manager).for_(CONFIG_MAPS).with_options(workers=1, grace_seconds=5).build(work.reconcile)
    work.gates["slow"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        handlers = list(cluster.maps.handlers)
        for name in ("slow", "waiting"):
            cluster.maps.put(name)
        built.queue.add_after(Request("a", "ns", "delayed"), 60)
        await eventually(lambda: built.under_way, lambda under_way: under_way == {"a": 1})
        removing = asyncio.create_task(given.remove("a"))
        await eventually(lambda: built.queue.depth("a"), lambda depth: depth == 0)
        assert cluster.maps.handlers == []
        assert len(handlers) == 1
        assert not removing.done()
        work.gates["slow"].set()
        await removing
        assert work.names("a") == ["slow"]
        assert (built.clusters, built.under_way, built.queue.idle) == ([], {}, True)
        assert (built.queue.depths(), built.stats.by_cluster) == ({}, {})
        assert built.stats.dropped == {"gone": 2}
        assert built.stats.reconciles == {"success": 1}


async def test_running_reconciles_are_cancelled_after_the_grace(manager, work, fake_cluster, eventually, fleet):
    """Criterion 75: disengagement waits for the reconciles of the cluster, and cancels them after the grace."""
    built = controller(manager).for_(CONFIG_MAPS).with_options(grace_seconds=0.05).build(work.reconcile)
    work.gates["stuck"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster, other = fake_cluster("a"), fake_cluster("b")
        for member in (cluster, other):
            await given.add_or_replace(member)
            member.maps.put("stuck")
        await eventually(lambda: built.under_way, lambda under_way: under_way == {"a": 1, "b": 1})
        await given.remove("a")
        assert work.ended == [Request("a", "ns", "stuck")]
        assert built.under_way == {"b": 1}
        assert built.stats.reconciles == {}


async def test_requeue_of_a_removed_cluster_is_ignored(manager, work, fake_cluster, eventually, fleet):
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    work.gates["slow"] = asyncio.Event()
    work.answers["slow"] = Result(requeue_after_seconds=0.001)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("slow")
        await eventually(lambda: built.under_way)
        removing = asyncio.create_task(given.remove("a"))
        await eventually(lambda: built.clusters, lambda names: names == [])
        work.gates["slow"].set()
        await removing
        await asyncio.sleep(0.02)
        assert built.queue.idle
        assert work.names("a") == ["slow"]


async def test_single_cluster_reconciler_reads_cluster_from_context(manager, fake_cluster, eventually, fleet):
    """Criterion 30: a single-cluster reconciler runs unmodified with the cluster taken from the context."""
    seen = []

    async def reconcile(key):
        seen.append((manager.cluster_from_context().name, current_cluster(), str(key)))

    controller(manager).for_(CONFIG_MAPS).build(single_cluster(reconcile))
    async with fleet(manager) as given:
        for name in ("a", "b"):
            cluster = fake_cluster(name)
            await given.add_or_replace(cluster)
            cluster.maps.put("x")
        await eventually(lambda: sorted(seen), lambda found: found == [("a", "a", "ns/x"), ("b", "b", "ns/x")])
        assert current_cluster() is None


async def test_thousand_engage_cycles_leave_no_task_or_state(manager, work, fake_cluster):
    """Criterion 68: 1,000 engage/disengage cycles leave no task and no state in the controller."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with manager:
        await asyncio.sleep(0)
        before = len(asyncio.all_tasks())
        for number in range(1000):
            engagement = Engagement(fake_cluster(f"cluster-{number}"), generation=number)
            await built.engage(engagement)
            engagement.cluster.maps.put("x")
            built.queue.add_after(Request(engagement.cluster.name, "ns", "later"), 60)
            if number % 2:
                await asyncio.sleep(0)
            await engagement.aclose()
            assert engagement.cluster.maps.handlers == []
        assert len(asyncio.all_tasks()) == before
        assert (built.clusters, built.under_way, built.stats.by_cluster) == ([], {}, {})
        assert (built.queue._lanes, built.queue._limiter._failures, built.queue.idle) == ({}, {}, True)


async def test_results_are_counted_by_cluster_as_in_controller_runtime(manager, work, fake_cluster, eventually, fleet):
    builder = controller(manager).for_(CONFIG_MAPS)
    built = builder.with_options(timeout_seconds=0.05, rate_limiter=ItemBackoff(initial_seconds=60)).build(
        work.reconcile
    )
    work.answers |= {
        "fails": Unreachable("no", kind="connect"),
        "again": Result(requeue=True),
        "later": Result(requeue_after_seconds=60),
    }
    work.gates["slow"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        for name in ("works", "fails", "again", "later", "slow"):
            cluster.maps.put(name)
        await eventually(lambda: built.stats.reconciles.total(), lambda total: total == 5)
        expected = {"success": 1, "error": 2, "requeue": 1, "requeue_after": 1}
        assert built.stats.by_cluster == {"a": expected}
        assert (built.stats.timeouts, built.stats.durations.count) == (1, 5)
        assert 0.04 < built.stats.durations.total_seconds < 60
        assert {name: built.queue.failures(Request("a", "ns", name)) for name in ("works", "fails", "again")} == {
            "works": 0,
            "fails": 1,
            "again": 1,
        }


class _Noting(logging.Filter):
    def filter(self, record):
        record.noted = dict(logs._fields.get())
        return True


async def test_reconcile_log_records_have_cluster_fields(manager, fake_cluster, eventually, caplog, fleet):
    """Criterion 73: every log record of a reconcile and of its tasks has the cluster, namespace and name."""

    async def reconcile(request):
        async def inner():
            logging.getLogger("user").warning("inside")

        await asyncio.create_task(inner())
        raise ValueError("odd")

    controller(manager).for_(CONFIG_MAPS).build(reconcile)
    with caplog.filtering(_Noting()):
        async with fleet(manager) as given:
            cluster = fake_cluster("a")
            await given.add_or_replace(cluster)
            cluster.maps.put("x")
            await eventually(lambda: [record for record in caplog.records if "failed" in record.message])
    noted = [record.noted for record in caplog.records if record.name in {"user", "kplane.provider.controllers"}]
    expected = {"controller": "configmap", "cluster": "a", "namespace": "ns", "name": "x"}
    assert len(noted) >= 2
    assert all(each == expected for each in noted)


async def test_reconciles_have_separate_contexts(manager, fake_cluster, eventually, fleet):
    import contextvars

    left = contextvars.ContextVar("left", default="nothing")
    seen = []

    async def reconcile(request):
        seen.append(left.get())
        left.set(request.name)

    built = controller(manager).for_(CONFIG_MAPS).with_options(workers=1).build(reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        left.set("of the one who adds")
        for name in "xyz":
            cluster.maps.put(name)
        await eventually(lambda: len(seen), lambda count: count == 3)
    assert seen == ["nothing"] * 3


async def test_failed_source_is_retried_and_delays_no_other_cluster(
    manager, work, fake_cluster, eventually, caplog, fleet
):
    tries = []

    def wanted(name, cluster):
        if name == "odd":
            tries.append(name)
            if len(tries) == 1:
                raise ValueError("odd")
        return True

    built = controller(manager).for_(CONFIG_MAPS, engage(filter=wanted)).build(work.reconcile)
    async with fleet(manager) as given:
        clusters = {name: fake_cluster(name) for name in ("odd", "good")}
        for cluster in clusters.values():
            await given.add_or_replace(cluster)
            cluster.maps.put("x")
        await eventually(lambda: work.names("good"), lambda names: names == ["x"])
        await eventually(lambda: work.names("odd"), lambda names: names == ["x"])
        assert built.clusters == ["good", "odd"]
        assert len(clusters["odd"].maps.handlers) == 1


async def test_failed_late_watch_starts_elsewhere_and_is_retried(
    manager, work, fake_cluster, eventually, caplog, fleet, monkeypatch
):
    monkeypatch.setattr("kplane.provider.controllers.engaged._RETRY_SECONDS", 0.01)
    tries = []

    def wanted(name, cluster):
        if name == "a":
            tries.append(name)
            if len(tries) < 3:
                raise ValueError("odd")
        return True

    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with fleet(manager) as given:
        clusters = {name: fake_cluster(name) for name in "abc"}
        for cluster in clusters.values():
            await given.add_or_replace(cluster)
            cluster.mirror(SECRETS).put("s")
        await eventually(lambda: built.clusters, lambda names: names == ["a", "b", "c"])
        built.watch(KindSource(SECRETS, enqueue_object(), engage=engage(filter=wanted)))
        await eventually(lambda: "failed to watch Secret of cluster a" in caplog.text)
        for name in "bca":
            await eventually(lambda name=name: work.names(name), lambda names: names == ["s"])
        assert (len(tries), len(clusters["a"].mirror(SECRETS).handlers)) == (3, 1)


async def test_failed_late_watch_is_not_retried_in_a_removed_cluster(
    manager, work, fake_cluster, eventually, fleet, monkeypatch
):
    monkeypatch.setattr("kplane.provider.controllers.engaged._RETRY_SECONDS", 0.01)
    tries = []

    def wanted(name, cluster):
        tries.append(name)
        raise ValueError("odd")

    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with fleet(manager) as given:
        await given.add_or_replace(fake_cluster("a"))
        await eventually(lambda: built.clusters)
        built.watch(KindSource(SECRETS, enqueue_object(), engage=engage(filter=wanted)))
        await eventually(lambda: len(tries), lambda count: count > 2)
        await given.remove("a")
        count = len(tries)
        await asyncio.sleep(0.1)
        assert len(tries) == count


async def test_manager_end_leaves_no_task(manager, work, fake_cluster, eventually, fleet):
    """Criterion 68: a controller leaves no task after the end of its manager."""
    controller(manager).for_(CONFIG_MAPS).with_options(grace_seconds=0.01).build(work.reconcile)
    work.gates["stuck"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        cluster.maps.put("stuck")
        await eventually(lambda: work.asked)
    assert work.ended == [Request("a", "ns", "stuck")]
    assert asyncio.all_tasks() == {asyncio.current_task()}
