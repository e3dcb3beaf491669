"""Health by kind: a missing or forbidden kind does not make a cluster unreachable."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

import pytest

from kplane.provider import Client, Cluster, Informer
from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache import feed
from kplane.provider.cache.server_state import ServerState
from kplane.provider.client.resources import CONFIG_MAPS, PODS, SECRETS, SERVICES
from kplane.provider.errors import Forbidden, NotFound, NotServed

END = {"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}


class Server:
    """Serves kinds without objects. Refuses a kind with the status in `refusals`."""

    def __init__(self, tools):
        self.tools = tools
        self.refusals = {}
        self.asked = []
        self.ends = asyncio.Event()

    async def answer(self, asked, writer):
        plural = asked.target.partition("?")[0].rpartition("/")[2]
        self.asked.append(plural)
        if status := self.refusals.get(plural):
            writer.write(self.tools.http({"kind": "Status", "code": status, "message": "so it is"}, status=status))
            return
        if "watch=true" not in asked.target:
            writer.write(self.tools.http({"metadata": {"resourceVersion": "5"}, "items": []}))
            return
        writer.write(self.tools.stream_head())
        writer.write(self.tools.chunk(json.dumps({"type": "BOOKMARK", "object": END}).encode() + b"\n"))
        await writer.drain()
        await self.ends.wait()
        writer.transport.abort()


@pytest.fixture
def server(tools):
    return Server(tools)


@pytest.fixture
async def config(fault_server, server):
    return (await fault_server(server.answer)).config


@pytest.fixture
async def cluster(config):
    cluster = Cluster("acme", config=config)
    yield cluster
    await cluster.aclose()


@contextlib.asynccontextmanager
async def following(client, resource, *, server_state=None, seconds=0.01):
    backoff = Backoff(initial_seconds=seconds, maximum_seconds=seconds)
    informer = Informer(client, resource, server=server_state, backoff=backoff, watch_seconds=1)
    informer.start()
    try:
        yield informer
    finally:
        await informer.aclose()


async def test_refused_kind_is_named_and_cluster_stays_ready(cluster, server, eventually):
    server.refusals = {"secrets": 403, "pods": 404}
    async with asyncio.timeout(20):
        assert await cluster.cache.list(CONFIG_MAPS) == []
        with pytest.raises(NotServed, match=r"cluster 'acme' serves no v1/Pod: .*so it is; install its CRD") as missing:
            await cluster.cache.list(PODS)
        assert not isinstance(missing.value, NotFound)
        with pytest.raises(Forbidden, match=r"cluster 'acme' does not let secrets be read: .*so it is; grant that"):
            await cluster.cache.get(SECRETS, "a", namespace="b")
        # The second list fails at once, because the cache knows the refusal.
        with pytest.raises(NotServed):
            await cluster.cache.list(PODS)
    state, message, kinds = cluster.health
    assert (state, message) == ("Ready", "")
    assert {kind: refusal.reason for kind, refusal in kinds.items()} == {
        "v1/Secret": "Forbidden",
        "v1/Pod": "NotServed",
    }
    server.refusals["services"] = 503
    _ = cluster.cache.informer(SERVICES)
    await eventually(lambda: cluster.health.state == "Unreachable")
    assert "so it is" in cluster.health.message
    assert cluster.health.kinds.keys() == {"v1/Secret", "v1/Pod"}


async def test_kind_served_later_becomes_ready(config, server, eventually):
    server.refusals = {"pods": 404}
    async with Client(config) as client, following(client, PODS) as informer:
        await eventually(lambda: informer.state == "refused")
        assert informer.refusal.reason == "NotServed"
        server.refusals.clear()
        await eventually(lambda: informer.synced.is_set() and informer.state == "ready")
        assert (informer.state, informer.error, informer.refusal) == ("ready", "", None)


async def test_objects_of_kind_refused_later_stay_readable(cluster, server, eventually):
    assert await cluster.cache.list(PODS) == []
    server.refusals = {"pods": 403}
    server.ends.set()
    await eventually(lambda: cluster.health.kinds)
    assert await cluster.cache.list(PODS) == []


async def test_kind_served_within_seconds_is_logged_once_as_info(config, server, eventually, caplog):
    """An API server answers with 404 for a while after a CustomResourceDefinition is created."""
    server.refusals = {"pods": 404}
    with caplog.at_level(logging.INFO, logger="kplane.provider.cache.feed"):
        async with Client(config) as client, following(client, PODS) as informer:
            await eventually(lambda: len(server.asked) > 5)
            server.refusals.clear()
            await eventually(lambda: informer.state == "ready")
    assert [record.levelno for record in caplog.records if "failed to watch pods" in record.message] == [logging.INFO]


async def test_repeated_failure_is_logged_only_when_it_changes(config, server, eventually, caplog, monkeypatch):
    monkeypatch.setattr(feed, "_NEW_KIND_SECONDS", 0.0)
    server.refusals = {"pods": 404}

    def warnings():
        return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]

    with caplog.at_level(logging.INFO, logger="kplane.provider.cache.feed"):
        async with Client(config) as client, following(client, PODS) as informer:
            await eventually(lambda: len(server.asked) > 5)
            assert len(warnings()) == 1
            server.refusals["pods"] = 403
            await eventually(lambda: informer.refusal.reason == "Forbidden" and len(warnings()) == 2)
            asked = len(server.asked)
            await eventually(lambda: len(server.asked) > asked + 5)
            assert len(warnings()) == 2
            server.refusals.clear()
            await eventually(lambda: "watching pods again" in caplog.text)
            assert informer.state == "ready"


@pytest.mark.parametrize("answer", [None, 404, 403], ids=["objects", "404", "403"])
async def test_feed_retries_when_server_answers_another_feed(config, server, eventually, answer):
    server.refusals = {"pods": 503, "services": 503}
    together = ServerState()
    async with (
        Client(config) as client,
        following(client, PODS, server_state=together, seconds=3600) as waiting,
        following(client, SERVICES, server_state=together) as asking,
    ):
        await eventually(lambda: waiting.state == asking.state == "unreachable")
        server.refusals = {"services": answer}
        await asyncio.wait_for(waiting.wait_synced(), 60)


async def test_feed_that_fails_again_waits_its_full_backoff(config, server, eventually):
    server.refusals = {"pods": 503, "services": 404}
    together = ServerState()
    async with (
        Client(config) as client,
        following(client, PODS, server_state=together, seconds=3600),
        following(client, SERVICES, server_state=together),
    ):
        await eventually(lambda: server.asked.count("pods") == 2)
        asked = server.asked.count("services")
        await eventually(lambda: server.asked.count("services") > asked + 50)
        assert server.asked.count("pods") == 2


async def test_retries_of_many_feeds_are_spread(eventually):
    together = ServerState()
    waits = [asyncio.create_task(together.wait(3600)) for _ in range(200)]
    expired = await together.wait(0.01)
    together.answered()
    await eventually(lambda: any(task.done() for task in waits))
    assert not all(task.done() for task in waits)
    assert all(await asyncio.gather(*waits))
    assert not expired


async def test_watch_that_ends_at_once_does_not_count_as_recovery(config, server, eventually, caplog):
    server.ends.set()
    with caplog.at_level(logging.INFO, logger="kplane.provider.cache.feed"):
        async with Client(config) as client, following(client, PODS):
            await eventually(lambda: len(server.asked) > 10)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "again" not in caplog.text
