"""API servers that are down for minutes: requests of their clusters wait, and continue soon after the outage."""

from __future__ import annotations

import asyncio
import collections

import pytest

from kplane.provider import Manager, NotFound, Request, Result, Unreachable, controller, engage, enqueue_mapped
from kplane.provider.controllers.queue import FairQueue
from kplane.provider.controllers.rate_limiter import ItemBackoff
from kplane.provider.controllers.reconcile import is_unreached
from kplane.provider.controllers.sources import Channel
from kplane.provider.errors import ClusterNotReady, ServerError
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, SteeredLoop, eventually

MAPS = "v1/ConfigMap"
REQUESTS = 30
OUTAGE_SECONDS = 300.0
TARGET_SECONDS = 5.0


@pytest.fixture
def steered():
    """`steered(coroutine)` runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


class Sharing:
    """Coordinator of a process that watches the hub, and works on the hub only if `owns_hub`."""

    def __init__(self, *, owns_hub):
        self.owns_hub = owns_hub

    async def run(self, target):
        target.observe_local()
        while True:
            for name in filter(self.may_work, target.names()):
                target.allow(name)
            await target.wait_changed()

    def may_work(self, cluster):
        return bool(cluster) or self.owns_hub

    def grace_seconds(self, cluster):
        return None

    def require_read(self, cluster):
        pass

    def require_write(self, cluster):
        return None


class Fleet:
    """Clusters in memory, and a log of reconciles with time, request and result."""

    def __init__(self, *names, watch=True, **options):
        self.clusters = {name: FakeCluster(name) for name in names}
        self.provider = ClustersProvider()
        self.manager = Manager(None, self.provider, workers=4, name="test")
        self.reconciles = collections.defaultdict(list)
        self.asks = lambda request: request.cluster
        self.again = None
        described = controller(self.manager).named("maps").with_options(**options)
        described = described.for_(MAPS) if watch else described.watches_raw(Channel())
        self.built = described.build(self.reconcile)

    async def reconcile(self, request):
        loop = asyncio.get_running_loop()
        try:
            await self.clusters[self.asks(request)].client.get(MAPS, "0", namespace="default")
        except Unreachable:
            self.reconciles[request].append((loop.time(), False))
            raise
        self.reconciles[request].append((loop.time(), True))
        return self.again

    async def fill(self, name, *, count):
        for number in range(count):
            body = {"metadata": {"name": str(number), "namespace": "default"}}
            await self.clusters[name].client.create(MAPS, body)

    def done(self, *, since=0.0):
        return [request for request, ends in self.reconciles.items() if any(ok and when >= since for when, ok in ends)]

    def failures(self):
        return [sum(not ok for _, ok in ends) for ends in self.reconciles.values()]

    def add_all(self, cluster):
        for number in range(REQUESTS):
            self.built.queue.add(Request(cluster, "default", str(number)))


def test_requests_are_all_reconciled_soon_after_an_outage(steered):
    async def scenario():
        loop, fleet = asyncio.get_running_loop(), Fleet("a", "b")
        fleet.again = Result(requeue_after_seconds=20)
        async with fleet.manager:
            for name, cluster in fleet.clusters.items():
                await fleet.provider.add(cluster)
                await fleet.fill(name, count=REQUESTS)
            await eventually(lambda: len(fleet.done()) == 2 * REQUESTS)
            with fleet.clusters["a"].outage():
                # Some reconciles fail before the outage is detected.
                fleet.add_all("a")
                await asyncio.sleep(OUTAGE_SECONDS)
                waiting = fleet.built.queue.suspended(), fleet.built.queue.depth("a")
                others = len([request for request in fleet.done(since=loop.time() - 25) if request.cluster == "b"])
            back = loop.time()
            await eventually(
                lambda: len([request for request in fleet.done(since=back) if request.cluster == "a"]) == REQUESTS,
                timeout_seconds=1000,
            )
            return loop.time() - back, waiting, others, max(fleet.failures()), fleet.built.queue.suspended()

    seconds, waiting, others, failures, suspended = steered(scenario())
    assert seconds <= TARGET_SECONDS
    assert waiting == (["a"], REQUESTS)
    assert others == REQUESTS
    assert failures <= 3
    assert suspended == []


def test_hub_requests_are_reconciled_soon_after_a_member_outage(steered):
    async def scenario():
        loop, fleet = asyncio.get_running_loop(), Fleet("hub", "member")
        fleet.asks = lambda request: "member"
        async with fleet.manager:
            for name, cluster in fleet.clusters.items():
                await fleet.provider.add(cluster)
                await fleet.fill(name, count=1)
            await eventually(lambda: len(fleet.done()) == 2)
            with fleet.clusters["member"].outage():
                fleet.add_all("hub")
                await asyncio.sleep(OUTAGE_SECONDS)
                suspended = fleet.built.queue.suspended()
            back = loop.time()
            await eventually(lambda: len(fleet.done(since=back)) == REQUESTS, timeout_seconds=1000)
            return loop.time() - back, suspended

    seconds, suspended = steered(scenario())
    assert seconds <= TARGET_SECONDS
    assert suspended == ["member"]


@pytest.mark.parametrize("owns_hub", [True, False], ids=["owner of the hub", "watcher of the hub"])
def test_member_requests_are_reconciled_soon_after_a_hub_outage(steered, monkeypatch, owns_hub):
    # Only the end of the suspension may end a long delay.
    monkeypatch.setattr("kplane.provider.controllers.queue._UNREACHED_SECONDS", 1000.0)

    async def scenario():
        loop, hub, member, fleet = (
            asyncio.get_running_loop(),
            FakeCluster(""),
            FakeCluster("member"),
            ClustersProvider(),
        )
        monkeypatch.setattr("kplane.provider.manager.manager.Cluster", lambda *_, **__: hub)
        manager = Manager(hub.config, fleet, coordinator=Sharing(owns_hub=owns_hub), workers=4, name="test")
        done = {}

        async def reconcile(request):
            await hub.client.get(MAPS, "0", namespace="default")
            done[request] = loop.time()

        def of_member(_cluster, found):
            return [Request("member", "default", found["metadata"]["name"])]

        mapped = enqueue_mapped(of_member, preserve_cluster=True)
        described = controller(manager).named("maps").for_(MAPS, engage(provider=True))
        built = described.watches(MAPS, mapped, engage(local=True, provider=False)).build(reconcile)
        async with manager:
            await fleet.add(member)
            for number in range(REQUESTS):
                await hub.client.create(MAPS, {"metadata": {"name": str(number), "namespace": "default"}})
            await eventually(lambda: len(done) >= REQUESTS)
            with hub.outage():
                for number in range(REQUESTS):
                    built.queue.add(Request("member", "default", str(number)))
                await asyncio.sleep(OUTAGE_SECONDS)
                suspended = built.queue.suspended()
            back = loop.time()
            await eventually(lambda: sum(when >= back for when in done.values()) >= REQUESTS, timeout_seconds=1000)
            return loop.time() - back, suspended, built.queue.suspended()

    seconds, suspended, after = steered(scenario())
    assert seconds <= TARGET_SECONDS
    assert (suspended, after) == ([""], [])


def test_requests_of_an_unwatched_cluster_are_reconciled_soon_after_an_outage(steered):
    """No informer observes the API server, as with a hub that writes into its members."""

    async def scenario():
        loop, fleet = asyncio.get_running_loop(), Fleet("a", watch=False)
        async with fleet.manager:
            await fleet.provider.add(fleet.clusters["a"])
            await fleet.fill("a", count=1)
            await eventually(lambda: fleet.built.clusters == ["a"])
            with fleet.clusters["a"].outage():
                fleet.add_all("a")
                await asyncio.sleep(OUTAGE_SECONDS)
                suspended, most = fleet.built.queue.suspended(), max(fleet.failures())
            back = loop.time()
            await eventually(lambda: len(fleet.done(since=back)) == REQUESTS, timeout_seconds=1000)
            return loop.time() - back, suspended, most

    seconds, suspended, most = steered(scenario())
    assert seconds <= TARGET_SECONDS
    assert suspended == []
    assert most <= OUTAGE_SECONDS / 2 + 20


def test_delay_of_another_failure_grows_after_an_outage(steered):
    async def scenario():
        queue = FairQueue(uniform=lambda _low, high: high)
        request, delays = Request("a", "default", "0"), []
        for unreached in [True] * 15 + [False]:
            queue.add(request)
            assert queue.take() == request
            if unreached:
                queue.note_unreached(request)
            delays.append(queue.retry(request))
            queue.done(request)
            queue.hasten(request)
        return delays[-2:]

    unreached, other = steered(scenario())
    assert unreached == 4
    assert other > 60


def test_many_unreached_requests_are_retried_twenty_a_second(steered):
    async def scenario():
        queue = FairQueue(uniform=lambda _low, high: high, rate_limiter=ItemBackoff(initial_seconds=1000))
        requests = [Request("a", "default", str(number)) for number in range(200)]
        for request in requests:
            queue.add(request)
            queue.take()
            queue.note_unreached(request)
        return queue.retry(requests[0])

    assert steered(scenario()) == 10


def test_backoff_restarts_after_an_outage(steered):
    async def scenario():
        fleet = Fleet("a")
        async with fleet.manager:
            await fleet.provider.add(fleet.clusters["a"])
            await fleet.fill("a", count=1)
            await eventually(lambda: fleet.done())
            with fleet.clusters["a"].outage():
                fleet.add_all("a")
                await asyncio.sleep(OUTAGE_SECONDS)
            await eventually(lambda: fleet.built.queue.idle)
            return [fleet.built.queue.failures(request) for request in fleet.reconciles]

    assert set(steered(scenario())) == {0}


def test_controller_can_opt_to_work_on_unreachable_clusters(steered):
    async def scenario():
        fleet = Fleet("a", while_unreachable=True)
        async with fleet.manager:
            await fleet.provider.add(fleet.clusters["a"])
            await fleet.fill("a", count=1)
            await eventually(lambda: fleet.done())
            with fleet.clusters["a"].outage():
                await eventually(lambda: not fleet.clusters["a"].server_state.reachable)
                fleet.built.queue.add(Request("a", "default", "0"))
                await eventually(lambda: fleet.failures() == [4], timeout_seconds=60)
                return fleet.built.queue.suspended()

    assert steered(scenario()) == []


def test_cluster_removed_in_an_outage_leaves_no_state(steered):
    async def scenario():
        fleet = Fleet("a")
        async with fleet.manager:
            await fleet.provider.add(fleet.clusters["a"])
            await fleet.fill("a", count=1)
            await eventually(lambda: fleet.done())
            with fleet.clusters["a"].outage():
                await eventually(lambda: fleet.built.queue.suspended() == ["a"])
                fleet.add_all("a")
                await fleet.provider.remove("a")
                return fleet.built.queue.suspended(), fleet.built.queue.idle, fleet.built.queue.depths()

    assert steered(scenario()) == ([], True, {})


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unreachable("no", kind="connect"), True),
        (ClusterNotReady("not yet"), True),
        (ServerError(503, "ServiceUnavailable", "no backend"), True),
        (ServerError(500, "InternalError", "a webhook failed"), False),
        (NotFound(404, "NotFound", "gone"), False),
        (ExceptionGroup("two", [ValueError(), Unreachable("no", kind="timeout")]), True),
        (ValueError("odd"), False),
    ],
    ids=["unreachable", "not ready", "503", "500", "404", "group", "other"],
)
def test_is_unreached_is_true_only_for_unreachable_servers(error, expected):
    assert is_unreached(error) is expected


def test_is_unreached_follows_the_cause_of_an_error():
    error = ValueError("my own")
    error.__cause__ = Unreachable("no", kind="connect")
    assert is_unreached(error)
