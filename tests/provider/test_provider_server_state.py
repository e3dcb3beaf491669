"""The shared state of the feeds of an API server: reachability, and which feed retries first."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import Unreachable
from kplane.provider.cache.server_state import ServerState
from kplane.provider.errors import Expired
from kplane.provider.testing import FakeCluster, SteeredLoop, eventually

MAPS = "v1/ConfigMap"
SECRETS = "v1/Secret"


@pytest.fixture
def steered():
    """`steered(coroutine)` runs a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


async def test_server_is_unreachable_when_it_answers_no_feed():
    state, seen = ServerState(), []
    state.subscribe(lambda: seen.append(state.reachable))
    for feed, answers in (("a", True), ("b", True), ("a", False), ("b", False), ("b", False), ("a", True)):
        state.observe(feed, answers=answers)
    assert (seen, state.reachable) == ([False, True], True)


async def test_server_is_reachable_when_its_last_feed_has_ended():
    state, seen = ServerState(), []
    unsubscribe = state.subscribe(lambda: seen.append(state.reachable))
    state.observe("a", answers=False)
    state.forget("a")
    unsubscribe()
    state.observe("a", answers=False)
    assert seen == [False, True]


def test_only_the_scout_of_an_unreachable_server_retries_early(steered):
    async def scenario():
        state, loop, times = ServerState(), asyncio.get_running_loop(), {}

        async def wait(name):
            await state.wait(3600)
            times[name] = loop.time()

        state.observe("a", answers=False)
        async with asyncio.TaskGroup() as tasks:
            for name in "abc":
                tasks.create_task(wait(name))
        return times

    times = steered(scenario())
    assert 2 <= times.pop("a") <= 4.1
    assert [*times.values()] == pytest.approx([3600] * 2, rel=0.01)


def test_scout_retries_less_often_in_a_long_outage(steered):
    async def scenario():
        state, loop = ServerState(), asyncio.get_running_loop()
        state.observe("a", answers=False)
        await asyncio.sleep(3000)
        began = loop.time()
        await state.wait(3600)
        return loop.time() - began

    assert 20 <= steered(scenario()) <= 41


async def followed(cluster, *kinds):
    for kind in kinds:
        await cluster.cache.list(kind)


async def seconds_until_ready(cluster):
    loop = asyncio.get_running_loop()
    began = loop.time()
    await eventually(lambda: cluster.health.state == "Ready", timeout_seconds=600)
    return loop.time() - began


@pytest.mark.parametrize("seconds", [30, 300])
def test_all_feeds_follow_again_soon_after_an_outage(steered, seconds):
    async def scenario():
        cluster = FakeCluster("a")
        await followed(cluster, MAPS, SECRETS)
        with cluster.outage():
            await asyncio.sleep(seconds)
            assert (cluster.health.state, cluster.server_state.reachable) == ("Unreachable", False)
        found = await seconds_until_ready(cluster)
        assert cluster.server_state.reachable
        await cluster.aclose()
        return found

    assert steered(scenario()) <= 4.5


def test_version_that_expired_in_an_outage_is_listed_at_once(steered):
    async def scenario():
        cluster = FakeCluster("a")
        await followed(cluster, MAPS)
        with cluster.outage():
            await asyncio.sleep(300)
            cluster.fail(Expired(410, "Expired", "too old resource version"), verb="watch", kind=MAPS)
        found = await seconds_until_ready(cluster)
        restarts = cluster.cache.restarts["expired"]
        await cluster.aclose()
        return found, restarts

    seconds, restarts = steered(scenario())
    assert restarts == 1
    assert seconds <= 4.5


def test_version_that_expires_repeatedly_is_listed_after_pauses(steered):
    async def scenario():
        cluster, loop = FakeCluster("a"), asyncio.get_running_loop()
        await followed(cluster, MAPS)
        cluster.fail(Expired(410, "Expired", "too old resource version"), verb="watch", kind=MAPS, times=20)
        began = loop.time()
        cluster._transports[0].end_watches(Unreachable("reset", kind="connect"))
        await eventually(lambda: cluster.cache.restarts["expired"] == 20, timeout_seconds=3600)
        seconds = loop.time() - began
        await cluster.aclose()
        return seconds

    assert steered(scenario()) > 60
