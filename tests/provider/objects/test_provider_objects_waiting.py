"""Waits for objects."""

from __future__ import annotations

import asyncio

import pytest

from kplane.provider import NotServed, Resource
from kplane.provider.errors import WaitTimedOut
from kplane.provider.objects import is_condition_true, wait_for
from kplane.provider.testing import FakeCluster, SteeredLoop

MAPS = "v1/ConfigMap"
KEY = {"namespace": "default"}


def body(**fields):
    return {"metadata": {"name": "m", "namespace": "default", **fields.pop("metadata", {})}, **fields}


@pytest.fixture
def steered():
    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        yield runner.run


def has_a(found):
    return found is not None and "a" in found.get("data", {})


def test_wait_for_returns_the_object_once_the_condition_is_true(steered):
    async def scenario():
        fake = FakeCluster("a")
        waiting = asyncio.create_task(wait_for(fake.client, MAPS, "m", has_a, **KEY, timeout_seconds=60))
        await asyncio.sleep(5)
        await fake.client.create(MAPS, body())
        await asyncio.sleep(5)
        assert not waiting.done()
        await fake.client.patch(MAPS, "m", {"data": {"a": "1"}}, **KEY)
        found = await waiting
        gone = asyncio.create_task(wait_for(fake.client, MAPS, "m", lambda it: it is None, **KEY, timeout_seconds=60))
        await asyncio.sleep(5)
        await fake.client.delete(MAPS, "m", **KEY)
        assert await gone is None
        assert fake._store.followers == set()
        await fake.aclose()
        return found

    assert steered(scenario())["data"] == {"a": "1"}


@pytest.mark.parametrize(
    ("kind", "stored", "message"),
    [
        (MAPS, None, r"ConfigMap default/m: has_a is not true after 9 s; it does not exist"),
        (MAPS, body(data={"b": "1"}), r"it is .*\"data\":\{\"b\":\"1\"\}"),
        (MAPS, body(metadata={"finalizers": ["a/b"]}), r"it is \(it is being deleted\) \{"),
        ("v1/Secret", body(data={"b": "c2VjcmV0"}), r"it is \{\"apiVersion\":\"v1\",\"kind\":\"Secret\"\}$"),
    ],
)
def test_wait_for_timeout_shows_the_last_state(steered, kind, stored, message):
    async def scenario():
        fake = FakeCluster("a")
        if stored is not None:
            await fake.client.create(kind, stored)
            if stored["metadata"].get("finalizers"):
                await fake.client.delete(kind, "m", **KEY)
        with pytest.raises(WaitTimedOut, match=message) as caught:
            await wait_for(fake.client, kind, "m", has_a, **KEY, timeout_seconds=9)
        await fake.aclose()
        return caught.value

    assert isinstance(steered(scenario()), TimeoutError)


async def test_wait_for_accepts_is_condition_true():
    kind = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
    fake = FakeCluster("a", kinds=[kind])
    await fake.client.create(kind, body())
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    await fake.client.patch(kind, "m", status, **KEY, subresource="status")
    found = await wait_for(fake.client, kind, "m", lambda it: is_condition_true(it, "Ready"), **KEY, timeout_seconds=9)
    assert found is not None
    await fake.aclose()


async def test_wait_for_raises_not_served_for_a_missing_kind():
    fake = FakeCluster("a")
    with pytest.raises(NotServed):
        await wait_for(fake.client, "example.com/v1/Widget", "m", bool, **KEY, timeout_seconds=9)
    await fake.aclose()
