"""A cluster in memory, with the real client."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import (
    AlreadyExists,
    ApiError,
    Conflict,
    Invalid,
    Lease,
    Manager,
    NotFound,
    NotServed,
    ProviderError,
    Resource,
    Unreachable,
    controller,
)
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, eventually

MAPS = "v1/ConfigMap"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)


def body(name, **fields):
    return {"metadata": {"name": name, "namespace": "default", **fields.pop("metadata", {})}, **fields}


@pytest.fixture
async def fake():
    cluster = FakeCluster("a", kinds=[WIDGETS])
    yield cluster
    await cluster.aclose()


async def test_fake_writes_raise_conflict_and_not_found(fake):
    client = fake.client
    first = await client.create(MAPS, body("m", data={"a": "1"}))
    with pytest.raises(AlreadyExists):
        await client.create(MAPS, body("m"))
    patched = await client.patch(MAPS, "m", {"data": {"a": None, "b": "2"}}, namespace="default")
    assert patched["data"] == {"b": "2"}
    assert patched["metadata"]["uid"] == first["metadata"]["uid"]
    with pytest.raises(Conflict):
        await client.replace(MAPS, first)
    with pytest.raises(NotFound, match="namespaces"):
        await client.create(MAPS, {"metadata": {"name": "m", "namespace": "none"}})
    await client.delete(MAPS, "m", namespace="default")
    with pytest.raises(NotFound):
        await client.get(MAPS, "m", namespace="default")


async def test_fake_json_patch_is_atomic(fake):
    client = fake.client
    await client.create(MAPS, body("m", data={"a": "1"}, metadata={"finalizers": ["x/one", "x/two"]}))
    moved = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "move", "from": "/data/a", "path": "/data/b~1c"},
        {"op": "copy", "from": "/data/b~1c", "path": "/data/d"},
        {"op": "replace", "path": "/data/d", "value": "2"},
        {"op": "add", "path": "/metadata/finalizers/1", "value": "x/between"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]
    changed = await client.json_patch(MAPS, "m", moved, namespace="default")
    assert (changed["data"], changed["metadata"]["finalizers"]) == ({"b/c": "1", "d": "2"}, ["x/between", "x/two"])
    failing = [{"op": "remove", "path": "/data/d"}, {"op": "test", "path": "/data/b~1c", "value": "other"}]
    with pytest.raises(Invalid, match="failed"):
        await client.json_patch(MAPS, "m", failing, namespace="default")
    with pytest.raises(ApiError, match="list of operations") as refused:
        await client.json_patch(MAPS, "m", {"data": {}}, namespace="default")
    assert refused.value.status == 400
    assert await client.get(MAPS, "m", namespace="default") == changed


async def test_fake_handles_status_generation_and_finalizers(fake):
    client = fake.client
    made = await client.create("example.com/v1/Widget", body("w", spec={"n": 1}, metadata={"finalizers": ["x/y"]}))
    status = await client.patch(WIDGETS, "w", {"status": {"ok": True}}, namespace="default", subresource="status")
    assert (made["metadata"]["generation"], status["metadata"]["generation"]) == (1, 1)
    changed = await client.patch(WIDGETS, "w", {"spec": {"n": 2}, "status": None}, namespace="default")
    assert (changed["metadata"]["generation"], changed["status"]) == (2, {"ok": True})
    held = await client.delete(WIDGETS, "w", namespace="default")
    assert held["metadata"]["deletionTimestamp"]
    await client.patch(WIDGETS, "w", {"metadata": {"finalizers": None}}, namespace="default")
    assert not await client.exists(WIDGETS, "w", namespace="default")


async def test_fake_selects_and_watches_objects(fake):
    client = fake.client
    await client.create(MAPS, body("in", metadata={"labels": {"a": "b"}}))
    await client.create(MAPS, body("out"))
    listed = await client.list(MAPS, label_selector="a=b")
    assert [obj["metadata"]["name"] for obj in listed.items] == ["in"]
    named = await client.list(MAPS, field_selector="metadata.name=out")
    assert [obj["metadata"]["name"] for obj in named.items] == ["out"]
    maps = await client.resource(MAPS)
    async with client.watch(maps, resource_version=listed.resource_version, label_selector="a=b") as watch:
        await client.patch(MAPS, "out", {"metadata": {"labels": {"a": "b"}}}, namespace="default")
        await client.patch(MAPS, "out", {"data": {"x": "y"}}, namespace="default")
        await client.patch(MAPS, "out", {"metadata": {"labels": None}}, namespace="default")
        assert [(await anext(watch)).type for _ in range(3)] == ["ADDED", "MODIFIED", "DELETED"]


async def test_fake_fault_repeats_as_requested_before_or_after_write(fake):
    client = fake.client
    fake.fail(Conflict(409, "Conflict", "it has changed"), verb="create", kind=MAPS)
    with pytest.raises(Conflict, match="it has changed"):
        await client.create(MAPS, body("m"))
    assert not await client.exists(MAPS, "m", namespace="default")
    fake.fail(Unreachable("no answer came", kind="timeout"), verb="create", kind=MAPS, times=2, takes_effect=True)
    with pytest.raises(Unreachable, match="no answer came"):
        await client.create(MAPS, body("m"))
    assert await client.exists(MAPS, "m", namespace="default")
    with pytest.raises(Unreachable, match="no answer came"):
        await client.create(MAPS, body("m"))
    with pytest.raises(AlreadyExists):
        await client.create(MAPS, body("m"))
    with pytest.raises(NotFound):
        await client.get("v1/Secret", "m", namespace="default")


async def test_fake_watch_ends_with_its_client(fake):
    client = fake.client
    listed = await client.list(MAPS)
    async with client.watch(CONFIG_MAPS, resource_version=listed.resource_version, idle_timeout_seconds=10) as watch:
        await watch.open()
        reading = asyncio.create_task(watch.read())
        await asyncio.sleep(0)
        await fake.aclose()
        with pytest.raises(Unreachable, match="was closed"):
            await reading
    with pytest.raises(ProviderError, match="is closed"):
        await client.list(MAPS)


async def test_fake_sends_metadata_only_on_request(fake):
    await fake.client.create(MAPS, body("m", data={"a": "1"}))
    [listed] = (await fake.client.list(MAPS, metadata_only=True)).items
    cached = await fake.cache.get(MAPS, "m", namespace="default", metadata_only=True)
    assert "data" not in listed
    assert "data" not in cached
    assert cached["metadata"]["name"] == "m"


async def test_fake_delete_of_other_version_conflicts(fake):
    made = await fake.client.create(MAPS, body("m"))
    await fake.client.patch(MAPS, "m", {"data": {"a": "1"}}, namespace="default")
    old = made["metadata"]["resourceVersion"]
    with pytest.raises(Conflict):
        await fake.client.delete(MAPS, "m", namespace="default", resource_version=old)


async def test_eventually_timeout_shows_last_value(fake):
    with pytest.raises(AssertionError, match="the last answer is 7"):
        await eventually(lambda: 7, lambda found: found == 8, timeout_seconds=0.05)
    with pytest.raises(AssertionError, match="not found"):
        await eventually(lambda: fake.client.get(MAPS, "m", namespace="default"), timeout_seconds=0.05)


async def test_fake_raises_not_served_for_unknown_kind(fake):
    with pytest.raises(NotServed):
        await fake.client.resource("example.com/v1/Gadget")


async def test_fake_lease_has_one_holder(fake):
    """The test runs the real Lease, which needs an update that creates the object, and a refusal without a version."""
    now = 0.0

    def lease(identity):
        return Lease(fake.client, namespace="default", name="l", identity=identity, now=lambda: now, strict=True)

    one, other = lease("one"), lease("other")
    assert not await one.try_acquire(), "it has just been made, and may have been deleted while another one held it"
    now = one.timings.duration_seconds - 1.0
    await one.renew()
    now += 2.0
    assert one.held
    assert not await other.try_acquire()
    await one.release()
    assert await other.try_acquire()


async def test_fake_turns_string_data_of_secret_into_data(fake):
    made = await fake.client.create("v1/Secret", body("s", stringData={"a": "b"}))
    assert made["data"] == {"a": "Yg=="}
    assert "stringData" not in made


async def test_fake_watch_resolves_kind_by_name(fake):
    await fake.client.create(WIDGETS, body("w"))
    async with fake.client.watch("example.com/v1/Widget", namespace="default") as watch:
        event = await anext(watch)
    assert (event.type, event.object["kind"], event.object["metadata"]["name"]) == ("ADDED", "Widget", "w")
    with pytest.raises(NotServed):
        await anext(fake.client.watch("example.com/v1/Gadget"))


async def test_changed_object_is_reconciled_before_initial_objects(fake):
    provider, seen, hold = ClustersProvider(), [], asyncio.Event()
    await provider.add(fake)
    for number in range(20):
        await fake.client.create(MAPS, body(f"there-{number}"))
    manager = Manager(None, provider, name="test")

    async def reconcile(request):
        seen.append(request.name)
        await hold.wait()

    built = controller(manager).for_(MAPS).with_options(waiting=0).build(reconcile)
    async with manager:
        await eventually(lambda: built.queue.depth("a"), lambda depth: depth == 19)
        await fake.client.create(MAPS, body("new"))
        await fake.client.patch(MAPS, "there-19", {"data": {"a": "1"}}, namespace="default")
        await eventually(lambda: built.queue.depth("a"), lambda depth: depth == 20)
        await fake.client.create(MAPS, body("newer"))
        await eventually(lambda: built.queue.depth("a"), lambda depth: depth == 21)
        hold.set()
        await eventually(lambda: len(seen), lambda count: count == 22)
    assert seen[:4] == ["there-0", "new", "there-19", "newer"]
