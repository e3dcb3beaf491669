"""Controllers over a fleet: what comes leads to reconciles, what goes leaves nothing, and none delays the others."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging

import pytest

from provider import (
    CONFIG_MAPS,
    SECRETS,
    Backoff,
    ClusterNotFound,
    ClusterNotOwned,
    ClusterNotReady,
    Manager,
    ProviderError,
    Request,
    Result,
    Unreachable,
    current_cluster,
    logs,
    single_cluster,
)
from provider.builder import controller, engage, every_owner, predicates
from provider.engagement import Engagement
from provider.handlers import enqueue_mapped, enqueue_object, enqueue_owner
from provider.predicates import in_namespaces, on_events
from provider.rate_limiter import ItemBackoff
from provider.sources import Channel, KindSource, Poll
from provider.waiting import unanswered


class Given:
    """A provider of what a test puts into its fleet."""

    name = "given"

    def __init__(self):
        self.fleet = asyncio.get_running_loop().create_future()

    async def run(self, fleet):
        self.fleet.set_result(fleet)
        await asyncio.Event().wait()


class Work:
    """A reconciler that notes what it is asked, and does as it is told."""

    def __init__(self):
        self.asked = []
        self.begun = collections.Counter()
        self.ended = []
        self.answers = {}
        self.gates = {}

    async def reconcile(self, request):
        self.asked.append(request)
        gate = self.gates.get(request.name)
        if gate is not None:
            try:
                await gate.wait()
            finally:
                self.ended.append(request)
        answer = self.answers.get(request.name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def names(self, cluster):
        return [each.name for each in self.asked if each.cluster == cluster]


@contextlib.asynccontextmanager
async def fleet(manager):
    """Run the manager; what is given is its provider's fleet."""
    async with manager:
        yield await manager.provider.fleet


@pytest.fixture
async def manager():
    return Manager(None, Given(), max_concurrent=2)


@pytest.fixture
def work():
    return Work()


def map_of(cluster):
    return cluster.mirror(CONFIG_MAPS)


async def test_engaging_the_same_engagement_twice_is_one(manager, work, fake_cluster, eventually):
    """Criterion 22: engaging the same live instance twice registers one handler: one reconcile per event."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    engagement = Engagement(fake_cluster("a"), generation=1)
    async with manager:
        await built.engage(engagement)
        await built.engage(engagement)
        assert len(map_of(engagement.cluster).handlers) == 1
        map_of(engagement.cluster).put("x")
        await eventually(lambda: built.queue.idle and work.asked)
        assert work.asked == [Request("a", "ns", "x")]
        await engagement.aclose()


async def test_a_new_engagement_under_a_name_stops_the_old_handlers_first(manager, work, fake_cluster, eventually):
    """Criterion 23: engaging a new instance under the same name stops the old handlers first."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    old, new = (Engagement(fake_cluster("a", generation=number), generation=number) for number in (1, 2))
    handlers_at_start = []
    mirror = map_of(new.cluster)
    add = mirror.add_handler
    mirror.add_handler = lambda handler: (handlers_at_start.append(len(map_of(old.cluster).handlers)), add(handler))[1]
    async with manager:
        await built.engage(old)
        await built.engage(new)
        map_of(old.cluster).put("old")
        map_of(new.cluster).put("new")
        await eventually(lambda: work.asked)
        await old.aclose()
        map_of(new.cluster).put("newer")
        await eventually(lambda: len(work.asked), lambda count: count == 2)
        assert work.names("a") == ["new", "newer"]
        assert handlers_at_start == [0]
        await new.aclose()


async def test_a_watch_that_is_added_later_reaches_the_clusters_that_are_there(manager, work, fake_cluster, eventually):
    """Criterion 24: a watch added after engagement reaches already engaged clusters, and those to come."""
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


async def test_a_controller_that_is_added_later_gets_the_clusters_that_are_there(
    manager, work, fake_cluster, eventually
):
    """Criterion 66: a controller added after engagement gets all engaged clusters, and runs."""
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        map_of(cluster).put("x")
        controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
        await eventually(lambda: work.asked, lambda asked: asked == [Request("a", "ns", "x")])


async def test_after_removal_nothing_of_a_cluster_is_left(manager, work, fake_cluster, eventually):
    """Criterion 27: after removal no event of that cluster enqueues; its entry is gone from the controller."""
    built = controller(manager).for_(CONFIG_MAPS).with_options(max_concurrent=1, grace_seconds=5).build(work.reconcile)
    work.gates["slow"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        handlers = list(map_of(cluster).handlers)
        for name in ("slow", "waiting"):
            map_of(cluster).put(name)
        built.queue.add_after(Request("a", "ns", "delayed"), 60)
        await eventually(lambda: built.under_way, lambda under_way: under_way == {"a": 1})
        removing = asyncio.create_task(given.remove("a"))
        await eventually(lambda: built.queue.depth("a"), lambda depth: depth == 0)
        assert map_of(cluster).handlers == []
        assert len(handlers) == 1
        assert not removing.done()
        work.gates["slow"].set()
        await removing
        assert work.names("a") == ["slow"]
        assert (built.clusters, built.under_way, built.queue.idle) == ([], {}, True)
        assert (built.queue.depths(), built.stats.by_cluster) == ({}, {})
        assert built.stats.dropped == {"gone": 2}
        assert built.stats.reconciles == {"success": 1}


async def test_reconciles_under_way_get_a_grace_and_are_cancelled_then(manager, work, fake_cluster, eventually):
    """Criterion 75: the end of the work on a cluster waits for its reconciles, and cancels those that take too long."""
    built = controller(manager).for_(CONFIG_MAPS).with_options(grace_seconds=0.05).build(work.reconcile)
    work.gates["stuck"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster, other = fake_cluster("a"), fake_cluster("b")
        for each in (cluster, other):
            await given.add_or_replace(each)
            map_of(each).put("stuck")
        await eventually(lambda: built.under_way, lambda under_way: under_way == {"a": 1, "b": 1})
        await given.remove("a")
        assert work.ended == [Request("a", "ns", "stuck")]
        assert built.under_way == {"b": 1}
        assert built.stats.reconciles == {}


async def test_what_a_late_reconcile_asks_for_is_not_done(manager, work, fake_cluster, eventually):
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    work.gates["slow"] = asyncio.Event()
    work.answers["slow"] = Result(requeue_after_seconds=0.001)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        map_of(cluster).put("slow")
        await eventually(lambda: built.under_way)
        removing = asyncio.create_task(given.remove("a"))
        await eventually(lambda: built.clusters, lambda names: names == [])
        work.gates["slow"].set()
        await removing
        await asyncio.sleep(0.02)
        assert built.queue.idle
        assert work.names("a") == ["slow"]


async def test_a_cluster_that_is_gone_is_no_failure_unless_asked_for(manager, work, eventually):
    """Criterion 28: ClusterNotFound from a reconciler: no retry, no error; with the wrapper off: retried."""
    channel, tolerant, strict = Channel(), Work(), Work()
    for each in (tolerant, strict):
        each.answers["x"] = ClusterNotFound("there is no cluster 'a'")
    one = controller(manager).named("one").watches_raw(channel).build(tolerant.reconcile)
    two = controller(manager).named("two").watches_raw(channel)
    two = two.with_options(
        retry_cluster_not_found=True, rate_limiter=ItemBackoff(initial_seconds=0.001, maximum_seconds=0.001)
    ).build(strict.reconcile)
    async with manager:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        channel.put(Request("a", "ns", "x"))
        await eventually(lambda: len(strict.asked), lambda count: count >= 3)
        assert len(tolerant.asked) == 1
        assert one.stats.reconciles == {"success": 1}
        assert two.stats.reconciles["error"] >= 2


async def test_a_reconciler_for_one_cluster_gets_it_from_the_context(manager, fake_cluster, eventually):
    """Criterion 30: a single-cluster reconciler runs unmodified with the cluster taken from the context."""
    seen = []

    async def reconcile(key):
        seen.append((manager.cluster_from_context().name, current_cluster(), str(key)))

    controller(manager).for_(CONFIG_MAPS).build(single_cluster(reconcile))
    async with fleet(manager) as given:
        for name in ("a", "b"):
            cluster = fake_cluster(name)
            await given.add_or_replace(cluster)
            map_of(cluster).put("x")
        await eventually(lambda: sorted(seen), lambda found: found == [("a", "a", "ns/x"), ("b", "b", "ns/x")])
        assert current_cluster() is None


async def test_what_a_mapping_returns_is_of_the_events_cluster_unless_preserved(
    manager, work, fake_cluster, eventually
):
    """Criterion 32: map func output gets the event's cluster; the "preserve" variant keeps the given one."""

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
        for each in clusters:
            await given.add_or_replace(each)
        await eventually(lambda: built.clusters, lambda names: len(names) == 2)
        map_of(clusters[0]).put("mapped")
        clusters[0].mirror(SECRETS).put("preserved")
        expected = [Request("a", "", "mapped"), Request("a", "", "preserved"), Request("b", "", "preserved")]
        await eventually(lambda: sorted(work.asked), lambda asked: asked == expected)


def test_a_mapping_that_would_have_to_be_awaited_is_refused():
    async def fan_out(cluster, found):
        return []

    with pytest.raises(ProviderError, match="coroutine function"):
        enqueue_mapped(fan_out)


def owner(kind, name, *, controlling=False, api_version="apps/v1"):
    return {"apiVersion": api_version, "kind": kind, "name": name, "uid": name, "controller": controlling}


async def test_owned_objects_lead_to_their_controller_or_to_every_owner(manager, fake_cluster, eventually):
    """Criterion 15: an owned object's event reconciles its controller owner; every_owner reconciles every owner."""
    one, every = Work(), Work()
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
        map_of(cluster).put("x", metadata={"ownerReferences": owners})
        await eventually(lambda: sorted(every.names("a")), lambda names: names == ["controls", "owns"])
        assert one.asked == [Request("a", "ns", "controls")]
        map_of(cluster).put("x", metadata={"ownerReferences": [owner("Deployment", "new", controlling=True)]})
        await eventually(lambda: sorted(one.names("a")), lambda names: names == ["controls", "controls", "new"])


@pytest.mark.parametrize("references", [None, "odd", [1, None], [{"kind": "Node", "name": None}], {}])
def test_owners_that_are_none_lead_nowhere_and_of_cluster_scoped_kinds_there_is_no_namespace(references, fake_cluster):
    seen = []
    cluster = fake_cluster("a")
    handler = enqueue_owner("v1/Node", every_owner=True)
    map_of(cluster).add_handler(lambda event: seen.extend(handler(cluster, event)))
    map_of(cluster).put("x", metadata={"ownerReferences": references})
    map_of(cluster).put("x", metadata={"ownerReferences": [owner("Node", "n", api_version="v1")]})
    assert Request("a", "", "n") in seen


async def test_predicates_of_a_kind_and_of_all_must_both_agree(manager, work, fake_cluster, eventually):
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


async def test_events_that_do_not_matter_lead_to_nothing(manager, work, fake_cluster, eventually):
    built = controller(manager).for_(CONFIG_MAPS, predicates(on_events(deleted=False))).build(work.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        map_of(cluster).put("x")
        await eventually(lambda: work.asked)
        map_of(cluster).remove("x")
        await asyncio.sleep(0.01)
        assert len(work.asked) == 1


async def test_a_flood_in_one_cluster_delays_the_first_of_another_by_one_reconcile_at_most(
    manager, work, fake_cluster, eventually
):
    """Criterion 70: 10,000 items of A; the first one of B starts within one worker slot."""
    built = controller(manager).for_(CONFIG_MAPS).with_options(max_concurrent=1).build(work.reconcile)
    work.gates["100"] = asyncio.Event()
    async with fleet(manager) as given:
        flooded, other = fake_cluster("a"), fake_cluster("b")
        for each in (flooded, other):
            await given.add_or_replace(each)
        await eventually(lambda: len(built.clusters), lambda count: count == 2)
        for number in range(10_000):
            built.queue.add(Request("a", "ns", str(number)))
        await eventually(lambda: work.ended or work.names("a")[-1:] == ["100"])
        map_of(other).put("first")
        before = len(work.asked)
        work.gates["100"].set()
        await eventually(lambda: work.names("b"))
        assert work.asked[before] == Request("b", "ns", "first")
        await eventually(lambda: built.queue.idle, timeout=20)
    assert len(work.asked) == 10_001


class Later:
    """A coordinator that lets work on clusters begin when it is told."""

    def __init__(self):
        self.workplace = None
        self.mine = lambda cluster: True

    async def run(self, workplace):
        self.workplace = workplace
        await asyncio.Event().wait()

    def may_work(self, cluster):
        return self.mine(cluster)

    def require_read(self, cluster):
        pass

    def require_write(self, cluster):
        pass


async def test_a_request_for_a_cluster_that_is_not_ready_waits_until_it_is(work, fake_cluster, eventually):
    """Criterion 71: a request for a known but not ready cluster is parked and runs on engagement, not dropped."""
    coordinator, channel = Later(), Channel()
    manager = Manager(None, Given(), coordinator=coordinator)
    built = controller(manager).named("x").watches_raw(channel).build(work.reconcile)
    async with fleet(manager) as given:
        await given.add_or_replace(fake_cluster("a"))
        for name in ("one", "two", "one"):
            channel.put(Request("a", "ns", name))
        channel.put(Request("b", "ns", "of a cluster that nobody knows"))
        await eventually(lambda: (built.queue.depth("a"), work.names("b")), lambda seen: seen[0] == 2 and seen[1])
        assert (built.queue.parked(), work.names("a")) == (["a"], [])
        coordinator.workplace.allow("a")
        await eventually(lambda: work.names("a"), lambda names: sorted(names) == ["one", "two"])
        assert built.queue.parked() == []


async def test_what_waits_for_a_cluster_that_goes_is_thrown_away(work, fake_cluster, eventually, monkeypatch):
    monkeypatch.setattr("provider.multicluster._SWEEP_SECONDS", 0.01)
    coordinator, channel = Later(), Channel()
    manager = Manager(None, Given(), coordinator=coordinator)
    built = controller(manager).named("x").watches_raw(channel).build(work.reconcile)
    async with fleet(manager) as given:
        for name in ("a", "b"):
            await given.add_or_replace(fake_cluster(name))
            channel.put(Request(name, "ns", "x"))
        await eventually(lambda: sorted(built.queue.parked()), lambda names: names == ["a", "b"])
        await given.remove("a")
        await eventually(lambda: built.queue.parked(), lambda names: names == ["b"])
        coordinator.mine = lambda cluster: False
        await eventually(lambda: built.queue.idle)
        assert built.stats.dropped == {"gone": 1, "not_owned": 1}
        assert work.asked == []


async def test_a_reconcile_begins_only_while_this_process_may_work(work, fake_cluster, eventually, monkeypatch):
    """Criterion 61: ownership is asked at dispatch: what is somebody else's is not begun, nor lost where it is ours."""
    monkeypatch.setattr("provider.multicluster._SWEEP_SECONDS", 0.01)
    coordinator = Later()
    manager = Manager(None, Given(), coordinator=coordinator)
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        coordinator.workplace.allow("a")
        await eventually(lambda: built.clusters)
        coordinator.mine = lambda name: False
        for name in ("x", "y"):
            map_of(cluster).put(name)
        built.queue.add(Request("of somebody else", "ns", "x"))
        await eventually(lambda: built.stats.dropped, lambda dropped: dropped == {"not_owned": 1})
        await eventually(lambda: built.under_way, lambda under_way: under_way == {})
        assert (work.asked, built.queue.depth("a")) == ([], 2)
        # The engagement has not ended, so nobody would tell of these objects again.
        coordinator.mine = lambda name: True
        await eventually(lambda: sorted(work.names("a")), lambda names: names == ["x", "y"])


async def test_what_turns_out_not_to_be_ours_waits_and_other_clusters_are_a_failure(work, fake_cluster, eventually):
    coordinator = Later()
    manager = Manager(None, Given(), coordinator=coordinator)

    async def reconcile(request):
        await work.reconcile(request)
        coordinator.mine = lambda cluster: request.name != "ours no more"
        raise ClusterNotOwned("no")

    built = controller(manager).for_(CONFIG_MAPS).with_options(rate_limiter=ItemBackoff(initial_seconds=60))
    built = built.build(reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        coordinator.workplace.allow("a")
        map_of(cluster).put("asks for another")
        await eventually(lambda: built.stats.reconciles, lambda counts: counts == {"error": 1})
        map_of(cluster).put("ours no more")
        await eventually(lambda: built.queue.parked(), lambda names: names == ["a"])
        assert built.queue.depth("a") == 1
        assert built.stats.reconciles == {"error": 1}


async def test_a_thousand_clusters_that_come_and_go_leave_nothing(manager, work, fake_cluster):
    """Criterion 68: 1,000 engage/disengage cycles: tasks and what the controller keeps stay as they were."""
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    async with manager:
        await asyncio.sleep(0)
        before = len(asyncio.all_tasks())
        for number in range(1000):
            engagement = Engagement(fake_cluster(f"cluster-{number}"), generation=number)
            await built.engage(engagement)
            map_of(engagement.cluster).put("x")
            built.queue.add_after(Request(engagement.cluster.name, "ns", "later"), 60)
            if number % 2:
                await asyncio.sleep(0)
            await engagement.aclose()
            assert map_of(engagement.cluster).handlers == []
        assert len(asyncio.all_tasks()) == before
        assert (built.clusters, built.under_way, built.stats.by_cluster) == ([], {}, {})
        assert (built.queue._lanes, built.queue._limiter._failures, built.queue.idle) == ({}, {}, True)


async def test_a_cluster_that_is_not_ready_is_asked_again_and_is_no_failure(manager, work, fake_cluster, eventually):
    built = controller(manager).for_(CONFIG_MAPS).build(work.reconcile)
    work.answers["x"] = ClusterNotReady("another cluster is being engaged")
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        map_of(cluster).put("x")
        await eventually(lambda: len(work.asked), lambda count: count >= 3)
        work.answers["x"] = None
        await eventually(lambda: built.queue.idle)
        assert built.stats.reconciles == {"requeue": len(work.asked) - 1, "success": 1}


async def test_counts_results_by_cluster_as_controller_runtime_does(manager, work, fake_cluster, eventually):
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
            map_of(cluster).put(name)
        await eventually(lambda: built.stats.reconciles.total(), lambda total: total == 5)
        expected = {"success": 1, "error": 2, "requeue": 1, "requeue_after": 1}
        assert built.stats.by_cluster == {"a": expected}
        assert (built.stats.timeouts, built.stats.durations.count) == (1, 5)
        assert 0.05 < built.stats.durations.total_seconds < 2
        assert {name: built.queue.failures(Request("a", "ns", name)) for name in ("works", "fails", "again")} == {
            "works": 0,
            "fails": 1,
            "again": 1,
        }


class _Noting(logging.Filter):
    def filter(self, record):
        record.noted = dict(logs._fields.get())
        return True


async def test_what_is_logged_in_a_reconcile_and_of_its_failure_names_the_cluster(
    manager, fake_cluster, eventually, caplog
):
    """Criterion 73: every log line of a reconcile carries cluster, namespace and name, those of its tasks too."""

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
            map_of(cluster).put("x")
            await eventually(lambda: [record for record in caplog.records if "failed" in record.message])
    noted = [record.noted for record in caplog.records if record.name in {"user", "provider.controller"}]
    expected = {"controller": "configmap", "cluster": "a", "namespace": "ns", "name": "x"}
    assert len(noted) >= 2
    assert all(each == expected for each in noted)


async def test_the_context_of_one_reconcile_is_not_that_of_the_next(manager, fake_cluster, eventually):
    import contextvars

    left = contextvars.ContextVar("left", default="nothing")
    seen = []

    async def reconcile(request):
        seen.append(left.get())
        left.set(request.name)

    built = controller(manager).for_(CONFIG_MAPS).with_options(max_concurrent=1).build(reconcile)
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        await eventually(lambda: built.clusters)
        left.set("of the one who adds")
        for name in "xyz":
            map_of(cluster).put(name)
        await eventually(lambda: len(seen), lambda count: count == 3)
    assert seen == ["nothing"] * 3


async def test_silent_clusters_keep_no_worker_from_others(manager, fake_cluster, eventually):
    """Criterion 63: clusters whose servers say nothing delay nobody else's reconciles."""
    done, silence = [], asyncio.Event()

    async def reconcile(request):
        if request.cluster.startswith("silent"):
            with unanswered(patience_seconds=0.01):
                await silence.wait()
        done.append(request.cluster)

    built = controller(manager).for_(CONFIG_MAPS).with_options(max_concurrent=1).build(reconcile)
    async with fleet(manager) as given:
        for number in range(20):
            cluster = fake_cluster(f"silent-{number}")
            await given.add_or_replace(cluster)
            for name in range(5):
                map_of(cluster).put(str(name))
        cluster = fake_cluster("good")
        await given.add_or_replace(cluster)
        await eventually(lambda: len(built.clusters), lambda count: count == 21)
        map_of(cluster).put("x")
        await eventually(lambda: done, lambda names: names == ["good"])
        assert max(count for name, count in built.under_way.items()) == 1
        silence.set()
        await eventually(lambda: built.queue.idle)
    assert len(done) == 101


async def test_one_whose_source_does_not_start_is_tried_again_and_delays_nobody(
    manager, work, fake_cluster, eventually, caplog
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
            map_of(cluster).put("x")
        await eventually(lambda: work.names("good"), lambda names: names == ["x"])
        await eventually(lambda: work.names("odd"), lambda names: names == ["x"])
        assert built.clusters == ["good", "odd"]
        assert len(map_of(clusters["odd"]).handlers) == 1


async def test_raw_sources_run_whatever_clusters_there_are_and_again_when_they_fail(work, eventually, monkeypatch):
    monkeypatch.setattr("provider.running.Backoff", lambda **_: Backoff(initial_seconds=0.01, maximum_seconds=0.01))
    channel, asked = Channel(), []

    async def ask():
        asked.append(1)
        if len(asked) == 2:
            raise ValueError("odd")
        return [Request("", "polled", str(len(asked)))]

    class Fails:
        async def run(self, add):
            add(Request("", "failing", "x"))
            raise ValueError("odd")

    manager = Manager(None)
    channel.put(Request("", "early", "x"))
    channel.put(Request("", "early", "x"))
    built = controller(manager).named("x").watches_raw(channel).watches_raw(Poll(ask, every_seconds=0.02))
    built = built.watches_raw(Fails()).with_filter(lambda event: False).build(work.reconcile)
    async with manager:
        await eventually(lambda: len(asked), lambda count: count >= 4)
        await eventually(lambda: collections.Counter(work.asked)[Request("", "failing", "x")], lambda count: count > 1)
        channel.put(Request("", "late", "x"))
        late = Channel()
        built.watch_raw(late)
        late.put(Request("", "later", "x"))
        await eventually(lambda: Request("", "later", "x") in work.asked)
    counts = collections.Counter(each.namespace for each in work.asked)
    assert counts["early"] == counts["late"] == counts["later"] == 1
    assert counts["polled"] >= 2


async def test_the_end_of_the_manager_leaves_no_task(manager, work, fake_cluster, eventually):
    """Criterion 68: nothing of a controller is left when its manager has ended."""
    controller(manager).for_(CONFIG_MAPS).with_options(grace_seconds=0.01).build(work.reconcile)
    work.gates["stuck"] = asyncio.Event()
    async with fleet(manager) as given:
        cluster = fake_cluster("a")
        await given.add_or_replace(cluster)
        map_of(cluster).put("stuck")
        await eventually(lambda: work.asked)
    assert work.ended == [Request("a", "ns", "stuck")]
    assert asyncio.all_tasks() == {asyncio.current_task()}
