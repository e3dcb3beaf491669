"""Timeouts and limits that a provider sets for a cluster."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from kplane.provider import Client, Cluster, ClusterConfig, Manager, Unreachable
from kplane.provider.access.call_limits import CallLimits
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.errors import AnswerTooLarge, KubeconfigError
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster
from tests.silent_server import silent_server

CALLS = CallLimits(timeout_seconds=2.5, connect_timeout_seconds=1.5, answer_bytes=100, list_bytes=200, values=50)


@pytest.mark.parametrize(
    "bound", ["timeout_seconds", "connect_timeout_seconds", "answer_bytes", "list_bytes", "values"]
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_call_limits_not_above_zero_are_refused(bound, value):
    with pytest.raises(KubeconfigError, match=f"{bound} of a cluster is {value}: give a number above 0"):
        CallLimits(**{bound: value})


async def test_client_uses_limits_of_cluster_unless_it_has_its_own():
    config = ClusterConfig("https://127.0.0.1:1", calls=CALLS)
    async with Client(config) as client, Client(config, timeout_seconds=9, limits=AnswerLimits()) as own:
        assert (client.timeout_seconds, client.limits) == (2.5, AnswerLimits(100, 200, 50))
        assert (own.timeout_seconds, own.limits) == (9, AnswerLimits())
    async with Client(ClusterConfig("https://127.0.0.1:1")) as client:
        assert (client.timeout_seconds, client.limits) == (30, AnswerLimits())


async def test_limits_of_cluster_override_limits_of_manager():
    config = ClusterConfig("https://127.0.0.1:1", calls=CallLimits(timeout_seconds=2.5, answer_bytes=100))
    limits = AnswerLimits(list_bytes=1000)
    manager = Manager(config, name="test", timeout_seconds=60, limits=limits)
    assert manager.local.client.timeout_seconds == 2.5
    assert manager.local.client.limits == replace(limits, answer_bytes=100)
    other = Manager(replace(config, calls=CallLimits()), name="test", timeout_seconds=60, limits=limits)
    assert (other.local.client.timeout_seconds, other.local.client.limits) == (60, limits)


async def test_manager_sets_limits_of_each_cluster_of_a_fleet(eventually):
    provider, limits = ClustersProvider(), AnswerLimits(list_bytes=1000)
    await provider.add(FakeCluster("slow"))
    await provider.add(FakeCluster("usual"))
    given = {"slow": CallLimits(timeout_seconds=90, answer_bytes=100)}
    manager = Manager(None, provider, name="test", limits=limits, calls=lambda cluster: given.get(cluster.name))
    async with manager:
        await eventually(lambda: manager.cluster_names() == ["slow", "usual"])
        clients = [manager.get_cluster(name).client for name in ("slow", "usual")]
    assert [client.timeout_seconds for client in clients] == [90, 30]
    assert [client.limits for client in clients] == [replace(limits, answer_bytes=100), limits]


async def test_limits_of_configuration_override_calls_of_manager(monkeypatch):
    config = ClusterConfig("https://127.0.0.1:1", calls=CallLimits(timeout_seconds=2.5))
    calls = CallLimits(timeout_seconds=9, connect_timeout_seconds=1.5, values=50)
    cluster = Manager(config, name="test", calls=lambda _cluster: calls).local
    assert cluster.calls() == replace(calls, timeout_seconds=2.5)
    asked, make = {}, Client
    monkeypatch.setattr("kplane.provider.cluster.cluster.Client", lambda *a, **b: asked.update(b) or make(*a, **b))
    assert (cluster.client.timeout_seconds, cluster.client.limits.values) == (2.5, 50)
    assert asked["connect_timeout_seconds"] == 1.5


async def test_connection_attempt_ends_at_timeout_of_cluster():
    with silent_server() as silent:
        config = ClusterConfig(silent.url, calls=CallLimits(connect_timeout_seconds=0.2))
        began = time.monotonic()
        async with asyncio.timeout(20), Client(config) as client:
            with pytest.raises(Unreachable, match="in time"):
                await client.probe()
    assert time.monotonic() - began < 4


async def test_answer_above_limit_of_cluster_is_refused(fault_server, tools):
    async def answer(_, writer):
        writer.write(tools.http({"a": "b" * 200}))

    server = await fault_server(answer)
    async with Client(replace(server.config, calls=CALLS)) as client:
        with pytest.raises(AnswerTooLarge, match="more than 100 bytes"):
            await client.request("GET", "/version")


def test_cluster_with_other_limits_does_not_continue_the_old_one():
    before = ClusterConfig("https://127.0.0.1:1", token="a")
    assert replace(before, token="b").continues(before)
    assert not Cluster("a", config=replace(before, calls=CALLS)).continues(Cluster("a", config=before))
    assert "calls" not in str(replace(before, calls=CALLS).to_kubeconfig())
