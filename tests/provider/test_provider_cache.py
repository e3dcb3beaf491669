"""The cache of a cluster: reads, indexes, pauses and failures to sync."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from kplane.provider import Cache, Client, ClusterNotReady, NotFound, ProviderError, current_cluster
from kplane.provider.aio.overflow import OverflowSlots, WorkerSlot
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.resources import CONFIG_MAPS, PODS, SERVICES
from kplane.provider.cluster.context import cluster_context
from kplane.provider.logs import log_fields

END = {"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}


def config_map(namespace, name, *, labels=None, **data):
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": "1"}
    return {"metadata": {**metadata, "labels": labels or {}}, "data": data}


class Collection:
    """Streams `objects`, then the changes of the queue. Refuses some kinds, and never answers for Pods."""

    def __init__(self, tools):
        self.tools, self.objects, self.asked = tools, [], []
        self.refusals = {"secrets": 403, "services": 503, "deployments": 404}
        self.changes = asyncio.Queue()

    async def answer(self, asked, writer):
        path = asked.target.partition("?")[0]
        self.asked.append(path)
        if status := self.refusals.get(path.rpartition("/")[2]):
            writer.write(self.tools.http({"kind": "Status", "code": status, "message": "not for you"}, status=status))
            return
        if path.endswith("pods"):
            await asyncio.sleep(60)
        writer.write(self.tools.stream_head())
        for kind, found in [*(("ADDED", obj) for obj in self.objects), ("BOOKMARK", END)]:
            await self.send(kind, found, writer)
        while True:
            kind, found = await self.changes.get()
            await self.send(kind, found, writer)

    async def send(self, kind, found, writer):
        writer.write(self.tools.chunk(json.dumps({"type": kind, "object": found}).encode() + b"\n"))
        await writer.drain()


@pytest.fixture
def collection(tools):
    return Collection(tools)


@pytest.fixture
async def client(fault_server, collection):
    server = await fault_server(collection.answer)
    async with Client(server.config) as client:
        yield client


@pytest.fixture
async def cache(client):
    cache = Cache(client, name="one", sync_timeout_seconds=60)
    yield cache
    await cache.aclose()


def names(found):
    return sorted((obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in found)


async def test_cache_finds_objects_by_name_namespace_and_labels(cache, collection):
    collection.objects = [
        config_map("x", "a", labels={"app": "web"}),
        config_map("x", "b"),
        config_map("y", "a", labels={"app": "db"}),
    ]
    assert (await cache.get(CONFIG_MAPS, "a", namespace="y"))["metadata"]["labels"] == {"app": "db"}
    assert names(await cache.list(CONFIG_MAPS)) == [("x", "a"), ("x", "b"), ("y", "a")]
    assert names(await cache.list(CONFIG_MAPS, namespace="x")) == [("x", "a"), ("x", "b")]
    assert names(await cache.list(CONFIG_MAPS, label_selector="app in (web,db)")) == [("x", "a"), ("y", "a")]
    assert names(await cache.list(CONFIG_MAPS, label_selector="app", namespace="x")) == [("x", "a")]
    assert cache.informer(CONFIG_MAPS).keys(label_selector="!app") == [("x", "b")]
    assert await cache.list(CONFIG_MAPS, namespace="z") == []
    with pytest.raises(ProviderError, match="a namespace is needed"):
        await cache.get(CONFIG_MAPS, "a")
    for name, namespace in (("c", "x"), ("b", "y")):
        with pytest.raises(NotFound, match="is not in Cache"):
            await cache.get(CONFIG_MAPS, name, namespace=namespace)
    with pytest.raises(ProviderError, match="cannot be read"):
        await cache.list(CONFIG_MAPS, label_selector="a>1")
    assert collection.asked == ["/api/v1/configmaps"]


async def test_change_of_a_returned_object_leaves_cache_unchanged(cache, collection):
    collection.objects = [config_map("x", "a", labels={"app": "web"}, k="v")]
    events = []
    cache.informer(CONFIG_MAPS).add_handler(events.append)
    found = await cache.get(CONFIG_MAPS, "a", namespace="x")
    (listed,) = await cache.list(CONFIG_MAPS)
    for each in (found, listed, events[0].object):
        each["data"]["k"] = "changed"
        each["metadata"]["labels"].clear()
    assert (await cache.get(CONFIG_MAPS, "a", namespace="x"))["data"] == {"k": "v"}
    assert names(await cache.list(CONFIG_MAPS, label_selector="app=web")) == [("x", "a")]


async def test_index_follows_changes_of_objects(cache, collection, eventually):
    """Criterion 36: the same index may be added twice. It follows changed and deleted objects."""
    collection.objects = [config_map("x", "a", owner="me"), config_map("x", "b", owner="you", third="gone")]

    def owners(found):
        return found.get("data", {}).values()

    for _ in range(2):
        cache.index_field(CONFIG_MAPS, "owner", owners)
    assert names(await cache.list(CONFIG_MAPS, field={"owner": "me"})) == [("x", "a")]
    cache.index_field(CONFIG_MAPS, "owner", owners)
    events = []
    cache.informer(CONFIG_MAPS).add_handler(lambda event: events.append(event.kind))
    changed = config_map("x", "b", owner="me", other="you")
    changed["metadata"]["resourceVersion"] = "6"
    collection.changes.put_nowait(("MODIFIED", changed))
    collection.changes.put_nowait(("DELETED", config_map("x", "a", owner="me")))
    await eventually(lambda: "DELETED" in events)
    assert names(await cache.list(CONFIG_MAPS, field={"owner": "me"})) == [("x", "b")]
    assert names(await cache.list(CONFIG_MAPS, field={"owner": "you"})) == [("x", "b")]
    cache.index_field(CONFIG_MAPS, "name", lambda found: found["metadata"]["name"])
    assert names(await cache.list(CONFIG_MAPS, field={"owner": "me", "name": "b"})) == [("x", "b")]
    assert await cache.list(CONFIG_MAPS, field={"owner": "me", "name": "a"}) == []
    assert cache.informer(CONFIG_MAPS)._store._indexes._entries_by_value.keys() == {
        ("owner", "me"),
        ("owner", "you"),
        ("name", "b"),
    }
    (kept,) = await cache.list(CONFIG_MAPS)
    assert abs(cache.size_bytes()["ConfigMap"] - len(json.dumps(kept))) < 50


async def test_invalid_index_is_refused_and_failing_index_is_isolated(cache, collection, caplog):
    unhashable = {"metadata": {"name": "odder", "uid": "p"}, "data": {"owner": ["me"]}}
    collection.objects = [{"metadata": {"name": "odd", "uid": "o"}}, unhashable, config_map("x", "a", owner="me")]
    cache.index_field(CONFIG_MAPS, "owner", lambda found: [found["data"]["owner"]])
    cache.index_field(CONFIG_MAPS, "name", lambda found: [found["metadata"]["name"]])
    with pytest.raises(ProviderError, match="already indexed by another function"):
        cache.index_field(CONFIG_MAPS, "owner", lambda found: [])
    with pytest.raises(ProviderError, match="already indexed by another function"):
        cache.informer(CONFIG_MAPS).add_index("owner", lambda found: [])
    with pytest.raises(ProviderError, match="no index 'colour': call index_field"):
        await cache.list(CONFIG_MAPS, field={"colour": "red"})
    with pytest.raises(ProviderError, match="no index 'owner'"):
        await cache.list(CONFIG_MAPS, field={"owner": "me"}, metadata_only=True)
    assert len(await cache.list(CONFIG_MAPS, field={"owner": "me"})) == 1
    assert len(await cache.list(CONFIG_MAPS, field={"name": "odd"})) == 1
    assert len(await cache.list(CONFIG_MAPS, field={"name": "odder"})) == 1
    assert "failed to index ConfigMap /odd by 'owner'" in caplog.text
    assert "failed to index ConfigMap /odder by 'owner'" in caplog.text


async def test_cache_that_cannot_sync_raises_with_cause(client, eventually):
    cache = Cache(client, sync_timeout_seconds=0.3)
    assert cache.state == "ready"
    cache.informer(SERVICES)
    await eventually(lambda: "not for you" in cache.error)
    with pytest.raises(ClusterNotReady, match=r"services of .* are not known yet: .*not for you"):
        await cache.get(SERVICES, "a", namespace="b")
    assert cache.state == "unreachable"
    assert cache.restarts.keys() == {"refused"}
    cache.informer(CONFIG_MAPS)
    await cache.pause()
    assert cache.state == "ready"
    assert cache.restarts["refused"] >= 1
    await cache.aclose()


async def test_wait_for_cache_sync_releases_worker_slot(client):
    cache = Cache(client, sync_timeout_seconds=60)
    freed = asyncio.Event()
    place = WorkerSlot(OverflowSlots(1), freed.set)

    async def reconcile():
        place.take()
        await cache.get(PODS, "a", namespace="b")

    task = asyncio.create_task(reconcile())
    await asyncio.wait_for(freed.wait(), 60)
    assert not task.done()
    await cache.aclose()
    with pytest.raises(ClusterNotReady, match="was stopped"):
        await task


async def test_paused_cache_is_empty_and_lists_again_after_resume(cache, collection):
    collection.objects = [config_map("x", "a", owner="me")]
    cache.index_field(CONFIG_MAPS, "owner", lambda found: [found["data"]["owner"]])
    informer = cache.informer(CONFIG_MAPS)
    events = []
    registration = informer.add_handler(events.append)
    await cache.get(CONFIG_MAPS, "a", namespace="x")
    registration.remove()
    before = len(asyncio.all_tasks())
    await cache.pause()
    assert len(asyncio.all_tasks()) < before
    with pytest.raises(ClusterNotReady, match="was stopped"):
        informer.keys()
    assert cache.size_bytes() == {}
    cache.resume()
    assert cache._informers == {}
    collection.objects = [config_map("x", "b", owner="me")]
    assert names(await cache.list(CONFIG_MAPS, field={"owner": "me"})) == [("x", "b")]
    assert len(events) == 1
    await cache.aclose()
    with pytest.raises(ProviderError, match="is closed"):
        await cache.get(CONFIG_MAPS, "b", namespace="x")


async def test_handler_survives_pause_and_gets_objects_after_resume(cache, collection, eventually):
    collection.objects = [config_map("x", "stays"), config_map("x", "goes")]
    events, removed = [], []
    informer = cache.informer(CONFIG_MAPS)
    registration = informer.add_handler(lambda event: events.append((event.kind, event.name, event.initial)))
    gone = informer.add_handler(removed.append)
    await cache.list(CONFIG_MAPS)
    await eventually(registration.synced.is_set)
    waiting = asyncio.create_task(informer.wait_synced())
    await cache.pause()
    await waiting
    gone.remove()
    told = len(removed)
    assert not registration.synced.is_set()
    assert not informer.synced.is_set()
    with pytest.raises(ClusterNotReady, match="was stopped"):
        informer.add_handler(removed.append)
    assert cache.size_bytes() == {"ConfigMap": 0}
    collection.objects = [config_map("x", "stays"), config_map("x", "new")]
    events.clear()
    collection.changes = asyncio.Queue()
    cache.resume()
    await eventually(registration.synced.is_set)
    assert sorted(events) == [("ADDED", "new", True), ("ADDED", "stays", True)]
    collection.changes.put_nowait(("DELETED", config_map("x", "new")))
    await eventually(lambda: events[2:] == [("DELETED", "new", False)])
    assert cache.informer(CONFIG_MAPS) is informer
    assert len(removed) == told
    registration.remove()
    await cache.pause()
    assert cache._informers == {}


async def test_pause_raises_not_ready_for_waiting_reader(cache, eventually):
    informer = cache.informer(PODS)
    _ = informer.add_handler(lambda _event: None)
    waiting = asyncio.create_task(cache.list(PODS))
    await asyncio.sleep(0)
    pausing = asyncio.create_task(cache.pause())
    with pytest.raises(ClusterNotReady, match="was stopped"):
        await waiting
    await pausing


async def test_informer_does_not_inherit_context_of_first_reconcile(cache, collection, eventually, caplog):
    seen = []

    def handler(event):
        seen.append(current_cluster())
        raise ValueError("odd")

    with cluster_context("other"), log_fields(name="an object"):
        cache.informer(CONFIG_MAPS)
    cache.informer(CONFIG_MAPS).add_handler(handler)
    await cache.list(CONFIG_MAPS)
    with caplog.at_level(logging.ERROR):
        collection.changes.put_nowait(("ADDED", config_map("x", "new")))
        await eventually(lambda: seen)
    assert seen == [None]


async def test_informer_stop_raises_not_ready_for_waiting_get(cache, collection):
    collection.objects = [config_map("x", "a")]
    informer = cache.informer(CONFIG_MAPS)
    waiting = asyncio.create_task(cache.get(CONFIG_MAPS, "a", namespace="x"))

    def stop(_event):
        stopping.append(asyncio.ensure_future(informer.aclose()))

    stopping = []
    informer.add_handler(stop)
    with pytest.raises(ClusterNotReady, match="was stopped"):
        await waiting
    await stopping[0]


async def test_transform_changes_content_but_not_identity_of_object(client, collection, caplog):
    def forget(found):
        if found["metadata"]["name"] == "odd":
            raise ValueError("odd")
        if found["metadata"]["name"] == "other":
            return {**found, "metadata": {**found["metadata"], "name": "stranger"}}
        found["metadata"]["labels"]["seen"] = "1"
        del found["data"]
        return found

    collection.objects = [config_map("x", name, secret="s" * 1000) for name in ("a", "odd", "other")]
    for metadata_only in (False, True):
        cache = Cache(client, transform=forget)
        found = await cache.list(CONFIG_MAPS, label_selector="seen=1", metadata_only=metadata_only)
        if not metadata_only:
            assert names(found) == [("x", "a")]
            assert "data" not in found[0]
            assert 2000 < cache.size_bytes()["ConfigMap"] < 3000
        assert sorted(cache.informer(CONFIG_MAPS, metadata_only=metadata_only).keys()) == [
            ("x", "a"),
            ("x", "odd"),
            ("x", "other"),
        ]
        await cache.aclose()
    assert caplog.text.count("failed to transform") >= 4


async def test_transform_runs_once_for_each_stored_version(client, collection, eventually):
    seen, events = [], []

    def mark(found):
        seen.append((found["metadata"]["name"], found["metadata"]["resourceVersion"]))
        return {**found, "data": {"marked": "yes"}}

    collection.objects = [config_map("x", "a"), config_map("x", "b")]
    cache = Cache(client, transform=mark)
    cache.informer(CONFIG_MAPS).add_handler(lambda event: events.append((event.kind, event.object["data"])))
    await cache.list(CONFIG_MAPS)
    anew = config_map("x", "b")
    anew["metadata"] |= {"uid": "another", "resourceVersion": "7"}
    collection.changes.put_nowait(("DELETED", config_map("x", "a")))
    collection.changes.put_nowait(("MODIFIED", anew))
    await eventually(lambda: len(events) == 5)
    assert seen == [("a", "1"), ("b", "1"), ("b", "7")]
    assert sorted(kind for kind, _ in events) == ["ADDED", "ADDED", "ADDED", "DELETED", "DELETED"]
    assert all(data == {"marked": "yes"} for _, data in events)
    await cache.aclose()


async def test_cache_size_counts_stored_bytes(fault_server, collection):
    collection.objects = [{**config_map("x", "a", k="v" * 5000)}]
    collection.objects[0]["metadata"]["managedFields"] = [{"manager": "m" * 5000}]
    server = await fault_server(collection.answer)
    async with Client(server.config, limits=AnswerLimits(list_bytes=50_000)) as client:
        cache = Cache(client)
        await cache.list(CONFIG_MAPS)
        await cache.list(CONFIG_MAPS, metadata_only=True)
        full, partial = (cache.informer(CONFIG_MAPS, metadata_only=each).size_bytes for each in (False, True))
        assert 5000 < full < 5300
        assert partial < 200
        assert cache.size_bytes() == {"ConfigMap": full + partial}
        await cache.aclose()
