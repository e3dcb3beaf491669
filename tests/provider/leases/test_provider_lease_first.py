"""The first leadership of a process, and its logs while it waits for a Lease."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kplane.provider import Election, Lease
from kplane.provider.client.resources import LEASES
from kplane.provider.errors import LeaseLost
from kplane.provider.testing import FakeCluster, SteeredLoop, eventually

MAXIMUM_SECONDS = 0.1
"""Maximum time of an acquisition at once."""


@pytest.fixture
def steered():
    """`steered(coroutine)` runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


class Replica:
    """A process that repeats its election, and records the times at which its work began."""

    def __init__(self, cluster, identity, *, namespace="default", **options):
        self.now = asyncio.get_running_loop().time
        self.lease = Lease(cluster.client, namespace=namespace, name="mine", identity=identity, now=self.now, **options)
        self.election = Election(self.lease, on_overrun=None, now=self.now)
        self.begun = []
        self.lost = []

    async def run(self):
        while True:
            try:
                await self.election.run(self._work)
            except LeaseLost:
                self.lost.append(self.now())

    async def _work(self):
        self.begun.append(self.now())
        await asyncio.get_running_loop().create_future()


@contextlib.asynccontextmanager
async def standing(*replicas):
    tasks = [asyncio.create_task(each.run()) for each in replicas]
    try:
        yield
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def test_lease_never_held_is_acquired_at_once(steered):
    async def scenario():
        cluster = FakeCluster("local")
        first, second = Replica(cluster, "first"), Replica(cluster, "second")
        async with standing(first, second):
            await eventually(lambda: first.begun or second.begun)
            began = (first.begun + second.begun)[0]
            await asyncio.sleep(60)
        return began, len(first.begun) + len(second.begun)

    began, count = steered(scenario())
    assert began < MAXIMUM_SECONDS
    assert count == 1


def test_strict_missing_lease_is_acquired_after_its_duration(steered, caplog):
    async def scenario():
        replica = Replica(FakeCluster("local"), "first", strict=True)
        async with standing(replica):
            await eventually(lambda: replica.begun, timeout_seconds=60)
        return replica.begun

    with caplog.at_level("INFO", logger="kplane.provider.coordination.election"):
        (began,) = steered(scenario())
    assert 10 <= began <= 10.5
    waiting = [each.getMessage() for each in caplog.records if "waiting" in each.getMessage()]
    assert waiting == [
        "waiting: Lease default/mine did not exist; this process has created it, and gives a former holder 10 s to end"
    ]


def test_deleted_lease_of_a_holder_is_not_acquired_at_once(steered):
    async def scenario():
        cluster = FakeCluster("local")
        first, second = Replica(cluster, "first"), Replica(cluster, "second")
        async with standing(first):
            await eventually(lambda: first.begun)
            async with standing(second):
                await eventually(lambda: second.lease.holder == "first", timeout_seconds=60)
                await cluster.client.delete(LEASES, "mine", namespace="default")
                await asyncio.sleep(60)
        return first.begun, second.begun

    first, second = steered(scenario())
    assert (len(first), second) == (1, [])


def test_lost_lease_without_a_new_holder_is_reacquired_at_once(steered):
    async def scenario():
        cluster = FakeCluster("local")
        replica = Replica(cluster, "first")
        async with standing(replica):
            await eventually(lambda: replica.begun)
            with cluster.outage():
                await eventually(lambda: replica.lost, timeout_seconds=60)
            await eventually(lambda: len(replica.begun) == 2, timeout_seconds=60)
        return replica.begun[1] - replica.lost[0]

    # The process retries once: its first attempt was in the outage.
    assert steered(scenario()) < 2


def test_lease_obstacle_names_a_missing_namespace(steered, caplog):
    async def scenario():
        cluster = FakeCluster("local")
        replica = Replica(cluster, "first", namespace="missing")
        async with standing(replica):
            await eventually(lambda: caplog.records)

    with caplog.at_level("INFO", logger="kplane.provider.coordination.election"):
        steered(scenario())
    assert 'namespaces "missing" not found' in caplog.text


@pytest.mark.parametrize(("identity", "expected"), [("second", "is held by first since "), ("first", "is held since ")])
def test_lease_obstacle_names_the_holder(steered, identity, expected):
    async def scenario():
        cluster = FakeCluster("local")
        holder, asking = Replica(cluster, "first"), Replica(cluster, identity)
        assert await holder.lease.try_acquire()
        assert not await asking.lease.try_acquire()
        return asking.lease.obstacle

    obstacle = steered(scenario())
    assert obstacle.startswith(f"Lease default/mine {expected}")
    assert ("another process of this identity, first" in obstacle) == (identity == "first")
