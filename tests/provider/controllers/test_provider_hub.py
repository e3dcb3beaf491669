"""Objects of the local cluster that enqueue requests of clusters which several processes share."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import ClusterConfig, Manager, Request
from kplane.provider.client.resources import SECRETS
from kplane.provider.cluster.engagement import Engagement
from kplane.provider.controllers.builder import controller, engage
from kplane.provider.controllers.handlers import enqueue_mapped, enqueue_object

CLUSTERS = "abc"


class Sharing:
    """A coordinator of a process that owns the clusters in `mine`."""

    def __init__(self):
        self.mine = set()

    async def run(self, target):
        await asyncio.Event().wait()

    def may_work(self, cluster):
        return cluster in self.mine

    def grace_seconds(self, cluster):
        return 0.0

    def require_read(self, cluster):
        """Allow every read."""

    def require_write(self, cluster):
        return None


def spread(cluster, found):
    """Map an object of the hub to an object of each member."""
    return [Request(name, "ns", found["metadata"]["name"]) for name in CLUSTERS]


class Process:
    """The controller of a hub. The test engages its clusters."""

    def __init__(self, given, work, fake_cluster):
        self.coordinator = Sharing()
        self.manager = Manager(ClusterConfig("https://127.0.0.1:1"), given(), coordinator=self.coordinator, name="test")
        self.local, self.members = fake_cluster(""), {name: fake_cluster(name) for name in CLUSTERS}
        self.local_objects = engage(local=True, provider=False)
        self.controller = (
            controller(self.manager)
            .named("spread")
            .watches("v1/ConfigMap", enqueue_mapped(spread, preserve_cluster=True), self.local_objects)
            .watches("v1/Secret", enqueue_object(), self.local_objects)
            .build(work.reconcile)
        )
        clusters = {"": self.local, **self.members}
        self.known = {name: Engagement(cluster, generation=1) for name, cluster in clusters.items()}
        self.engagements = {}
        self.watch = self.known[""].inner()

    async def take(self, name):
        self.coordinator.mine.add(name)
        self.engagements[name] = self.known[name].inner()
        await (self.controller.engage if name else self.controller.engage_local)(self.engagements[name])

    async def give(self, name):
        self.coordinator.mine.discard(name)
        await self.engagements.pop(name).aclose()


@pytest.fixture
async def process(given, work, fake_cluster):
    process = Process(given, work, fake_cluster)
    running = asyncio.create_task(process.controller.run())
    yield process
    for each in process.known.values():
        await each.aclose()
    running.cancel()
    await asyncio.wait([running])


async def test_process_reconciles_only_requests_of_owned_clusters(process, work, eventually):
    await process.controller.watch_local(process.watch)
    await process.take("a")
    process.local.maps.put("one")
    await eventually(lambda: set(work.asked), lambda asked: asked == {Request("a", "ns", "one")})
    assert process.controller.stats.dropped["not_owned"] == 2
    assert len(process.controller.queue) == 0


async def test_hub_objects_are_reviewed_for_a_gained_cluster(process, work, eventually):
    await process.controller.watch_local(process.watch)
    process.local.maps.put("one")
    process.local.maps.put("two")
    assert work.asked == []
    await process.take("b")
    await eventually(lambda: sorted(set(work.names("b"))), lambda names: names == ["one", "two"])
    assert work.names("a") == work.names("c") == []
    await process.give("b")
    process.local.maps.put("three")
    await process.take("b")
    await eventually(lambda: sorted(set(work.names("b"))), lambda names: names == ["one", "three", "two"])


async def test_hub_requests_are_reconciled_by_the_owner_of_the_hub(process, work, eventually):
    await process.controller.watch_local(process.watch)
    process.local.mirror(SECRETS).put("s")
    process.local.maps.put("one")
    assert (work.asked, len(process.controller.queue)) == ([], 0)
    await process.take("")
    await eventually(lambda: work.asked, lambda asked: asked == [Request("", "ns", "s")])
    await process.give("")
    await process.take("c")
    # A process without ownership of the hub still watches it.
    process.local.maps.put("two")
    await eventually(lambda: sorted(set(work.names("c"))), lambda names: names == ["one", "two"])
    process.local.mirror(SECRETS).put("t")
    assert work.names("") == ["s"]


async def test_clusters_gained_together_share_a_review(process, work, eventually):
    await process.controller.watch_local(process.watch)
    process.local.maps.put("one")
    before = len(process.local.asked)
    for name in CLUSTERS:
        await process.take(name)
    expected = [Request(name, "ns", "one") for name in CLUSTERS]
    await eventually(lambda: sorted(work.asked), lambda asked: asked == expected)
    assert len(process.local.asked) == before + len(process.local.mirrors)
    assert len(process.local.maps.handlers) == 1


async def test_failed_review_is_retried(process, work, eventually, monkeypatch, caplog):
    await process.controller.watch_local(process.watch)
    process.local.maps.put("one")
    informer, tries = process.local.informer, []

    def fails(*args, **options):
        tries.append(args)
        if len(tries) == 1:
            raise ValueError("odd")
        return informer(*args, **options)

    monkeypatch.setattr(process.local, "informer", fails)
    await process.take("a")
    await eventually(lambda: work.asked, lambda asked: asked == [Request("a", "ns", "one")])
    assert "spread: failed to review the local cluster; retrying" in caplog.text


async def test_late_member_receives_hub_objects_from_a_single_process(process, work, eventually):
    """The cluster was unknown when its request was reconciled."""
    process.coordinator.mine.update(CLUSTERS)
    await process.take("")
    process.local.maps.put("one")
    await eventually(lambda: len(work.asked), lambda count: count == len(CLUSTERS))
    work.asked.clear()
    await process.take("b")
    await eventually(lambda: work.asked, lambda asked: asked == [Request("b", "ns", "one")])


async def test_hub_stays_watched_after_its_ownership_ends(process, work, eventually):
    await process.take("")
    await process.controller.watch_local(process.watch)
    await process.give("")
    await process.take("a")
    process.local.maps.put("one")
    await eventually(lambda: work.names("a"))
    assert len(process.local.maps.handlers) == 1
