"""A kopf operator for each cluster: restarts, credentials, and refused clusters."""

from __future__ import annotations

import builtins
import dataclasses
import threading

import kopf
import pytest

from kplane.provider import Client, Cluster, ClusterConfig, ProviderError
from kplane.provider.cluster.context import current_cluster
from kplane.provider.contrib.kopf.bridge import KopfAware
from kplane.provider.fleet.clusters import Clusters


def kopf_threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kopf ")]


async def refuse(_, writer):
    writer.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")


@pytest.fixture
def settings():
    made = kopf.OperatorSettings()
    made.scanning.disabled = True
    made.posting.enabled = False
    made.networking.error_backoffs = (0.1,)
    return made


@pytest.fixture
async def clusters():
    made = Clusters(retry_initial_seconds=0.1)
    yield made
    await made.aclose()
    assert kopf_threads() == []


@pytest.fixture
def kopf_ends_at_once(monkeypatch):
    """Keep kopf from waiting five seconds for hung tasks. kopf has no setting for this time."""
    from kopf._core.reactor import running

    wait = running.aiotasks.wait

    async def impatient(tasks, *, timeout=None, **options):
        return await wait(tasks, timeout=None if timeout is None else min(timeout, 0.05), **options)

    monkeypatch.setattr(running.aiotasks, "wait", impatient)


@pytest.mark.usefixtures("kopf_ends_at_once")
async def test_kopf_with_refused_credentials_sends_no_more_requests(
    fault_server, clusters, settings, eventually, monkeypatch, caplog
):
    monkeypatch.setattr("kplane.provider.contrib.kopf.bridge._LOGIN_SECONDS", 0.05)
    registry = kopf.OperatorRegistry()

    @kopf.on.event("example.com", "v1", "widgets", registry=registry)
    async def handle(**_): ...

    server = await fault_server(refuse)
    clusters.add_aware(KopfAware(registry, settings=settings))
    await clusters.add_or_replace(Cluster("a", config=dataclasses.replace(server.config, token="old")))

    def refusals():
        return caplog.text.count("refuses the credentials, and there are no others yet")

    await eventually(refusals)
    asked = len(server.asked)
    await eventually(refusals, lambda count: count > 5)
    assert len(server.asked) == asked > 0, "it logs in again and again, and asks the server for nothing meanwhile"
    await clusters.add_or_replace(Cluster("a", config=dataclasses.replace(server.config, token="new")))
    await eventually(lambda: server.asked[-1].headers["authorization"] == "Bearer new")


@pytest.mark.collect_garbage
@pytest.mark.usefixtures("kopf_ends_at_once")
async def test_kopf_that_ends_is_restarted(fault_server, clusters, settings, eventually):
    async def answer(_, writer):
        """Answer with a status that kopf does not retry."""
        writer.write(b"HTTP/1.1 415 No\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")

    registry, starts = kopf.OperatorRegistry(), []

    @kopf.on.startup(registry=registry)
    async def start(**_):
        starts.append(current_cluster())

    @kopf.on.event("example.com", "v1", "widgets", registry=registry)
    async def handle(**_): ...

    server = await fault_server(answer)
    clusters.add_aware(KopfAware(registry, settings=settings))
    await clusters.add_or_replace(Cluster("a", config=server.config))
    await eventually(lambda: starts[:2], lambda seen: seen == ["a", "a"])


async def test_cluster_inside_another_is_refused(clusters, settings, eventually):
    class Part(Cluster):
        def make_client(self):
            return Client(self.config)

    clusters.add_aware(KopfAware(kopf.OperatorRegistry(), settings=settings))
    await clusters.add_or_replace(Part("part", config=ClusterConfig("https://127.0.0.1:1")))
    await eventually(lambda: clusters.failure("part"), lambda why: why is not None and "is a part of another" in why)
    proxied = ClusterConfig("https://127.0.0.1:1", proxy="http://me:word@127.0.0.1:1")
    await clusters.add_or_replace(Cluster("proxied", config=proxied))
    await eventually(lambda: clusters.failure("proxied"), lambda why: why is not None and "with a password" in why)


def test_missing_kopf_error_names_the_package(monkeypatch):
    real = builtins.__import__

    def without_kopf(name, *args, **options):
        if name == "kopf":
            raise ImportError(name)
        return real(name, *args, **options)

    registry = kopf.OperatorRegistry()
    monkeypatch.setattr(builtins, "__import__", without_kopf)
    with pytest.raises(ProviderError, match="pip install kopf"):
        KopfAware(registry)
