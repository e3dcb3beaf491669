"""Liveness: a hung server is unreachable within 45 s, a quiet server stays ready."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from kplane.provider import Unreachable
from kplane.provider.client.liveness import IDLE_SECONDS, PROBE_SECONDS, Liveness
from kplane.provider.errors import Forbidden, KubeconfigError
from kplane.provider.testing import FakeCluster, SteeredLoop, eventually
from kplane.provider.testing.transport import FakeTransport

MAPS, SECRETS = "v1/ConfigMap", "v1/Secret"


@pytest.fixture
def steered():
    """`steered(coroutine)`: run a coroutine in simulated time."""
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


@pytest.fixture
def server(monkeypatch):
    """Paths and times of requests to FakeClusters. With `hangs` the server answers none of them."""

    class Server:
        def __init__(self):
            self.hangs, self.asked = False, []

    exchange, server = FakeTransport.exchange, Server()

    @contextlib.asynccontextmanager
    async def exchanging(self, request):
        server.asked.append((asyncio.get_running_loop().time(), request.path))
        if server.hangs:
            await asyncio.Event().wait()
        async with exchange(self, request) as response:
            yield response

    monkeypatch.setattr(FakeTransport, "exchange", exchanging)
    return server


@contextlib.asynccontextmanager
async def reading(*kinds):
    cluster = FakeCluster("a")
    try:
        for kind in kinds:
            await cluster.cache.list(kind)
        yield cluster
    finally:
        await cluster.aclose()


def probes(server):
    return [at for at, path in server.asked if path == "/version"]


def test_hung_server_makes_health_unreachable_within_45_seconds(steered, server):
    async def scenario():
        loop = asyncio.get_running_loop()
        async with reading(MAPS, SECRETS) as cluster:
            server.hangs, began = True, loop.time()
            await eventually(lambda: cluster.health.state, lambda state: state != "Ready", timeout_seconds=200)
            return loop.time() - began, cluster.health

    seconds, health = steered(scenario())
    assert health.state == "Unreachable"
    assert seconds <= 45.5
    assert "answers nothing else: GET /version: no answer" in health.message
    assert len(probes(server)) == 1


def test_quiet_server_stays_ready_and_is_probed_at_most_twice_a_minute(steered, server):
    async def scenario():
        async with reading(MAPS, SECRETS) as cluster:
            restarts, states = dict(cluster.cache.restarts), set()
            for _ in range(200):
                await asyncio.sleep(1)
                states.add(cluster.health.state)
            return states, restarts == dict(cluster.cache.restarts)

    assert steered(scenario()) == ({"Ready"}, True)
    assert 1 <= len(probes(server)) <= 200 / IDLE_SECONDS


def test_server_that_sends_events_is_not_probed(steered, server):
    async def scenario():
        async with reading(MAPS, SECRETS) as cluster:
            server.asked.clear()
            for number in range(20):
                await asyncio.sleep(20)
                await cluster.client.create(MAPS, {"metadata": {"name": f"m{number}", "namespace": "default"}})

    steered(scenario())
    assert probes(server) == []


def test_watch_that_closes_during_a_probe_awaits_its_end(steered, server):
    async def scenario():
        async with FakeCluster("a").client as client:
            async with client.watch(MAPS, resource_version="0") as watch:
                reading = asyncio.create_task(watch.read())
                await asyncio.sleep(1)
                server.hangs = True
                await asyncio.sleep(IDLE_SECONDS + 1)
                assert probes(server)
                reading.cancel()
                await asyncio.wait([reading])
            return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("probe")]

    assert steered(scenario()) == []


@pytest.mark.parametrize(
    "answer",
    [
        None,
        Forbidden(403, "Forbidden", "no"),
        KubeconfigError("no token"),
        Unreachable("certificate has expired", kind="tls"),
        Unreachable("no JSON", kind="protocol"),
    ],
)
def test_liveness_takes_any_answer_as_a_sign_of_life(steered, answer):
    async def probe():
        if answer is not None:
            raise answer

    async def scenario():
        liveness = Liveness(probe)
        return await liveness.check(), await liveness.check()

    assert steered(scenario()) == (IDLE_SECONDS, IDLE_SECONDS)


def test_liveness_probes_once_for_many_watches(steered):
    asked = []

    async def probe():
        asked.append(asyncio.get_running_loop().time())
        await asyncio.sleep(PROBE_SECONDS)
        raise Unreachable("no answer in time", kind="timeout")

    async def scenario():
        liveness = Liveness(probe)
        answers = await asyncio.gather(*(liveness.check() for _ in range(5)), return_exceptions=True)
        return [type(answer) for answer in answers], asyncio.get_running_loop().time()

    assert steered(scenario()) == ([Unreachable] * 5, pytest.approx(PROBE_SECONDS, abs=0.1))
    assert len(asked) == 1


def test_liveness_ignores_failed_probe_if_server_was_heard_meanwhile(steered):
    async def scenario():
        async def probe():
            liveness.heard()
            raise Unreachable("refused", kind="connect")

        liveness = Liveness(probe)
        return await liveness.check()

    assert steered(scenario()) == IDLE_SECONDS
