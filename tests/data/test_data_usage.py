"""Measuring a prefix in a real etcd, by steps that stay small."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kplane.data import Client, Credentials, InvalidPrefix, Put, TimedOut, TooLarge, Usage, Weight, estimate, usage
from kplane.data._proto import etcd_pb2 as pb
from kplane.data.walk import Walk

from .conftest import Etcd

pytestmark = pytest.mark.integration


async def test_keys_and_values_of_a_prefix_count_and_those_of_its_neighbours_do_not(
    client: Client, new_prefix: Callable[[], str]
) -> None:
    prefix, empty = new_prefix(), new_prefix()
    keys = [f"{prefix}{number:04}".encode() for number in range(700)]
    for start in range(0, 700, 100):
        await client.apply([Put(key, b"v" * 500) for key in keys[start : start + 100]])
    for beside in (prefix.rstrip("/"), f"{prefix.rstrip('/')}0/key"):
        await client.put(beside.encode(), b"beside")

    found = await usage(client, prefix, share=1.0)
    bare = sum(len(key) + 500 for key in keys)
    assert found.keys == 700
    # With what etcd keeps of each key besides.
    assert bare < found.bytes < bare + 700 * 40
    assert (await usage(client, empty, share=1.0)).keys == 0

    assert await estimate(client, prefix, seconds=60.0) == found
    # After the first step, the others count like it.
    estimated = await estimate(client, prefix, seconds=0.0)
    assert estimated.keys == 700
    assert abs(estimated.bytes - found.bytes) < found.bytes / 100
    assert (await estimate(client, empty, seconds=0.0)).keys == 0
    with pytest.raises(InvalidPrefix):
        await usage(client, "/", share=1.0)


async def test_a_tenant_with_large_values_after_small_ones_does_not_fill_the_memory(
    etcd: Etcd, client: Client, prefix: str
) -> None:
    """The steps grow while values are small. Then one of them would bring 64 MiB."""
    for start in range(0, 200, 100):
        await client.apply([Put(f"{prefix}a{number:04}".encode(), b"v") for number in range(start, start + 100)])
    for number in range(64):
        await client.put(f"{prefix}b{number:04}".encode(), bytes(1 << 20))
    files = Credentials.in_directory(etcd.directory / "root")
    async with Client(etcd.url, credentials=files, receive_at_most=8 << 20) as small:
        with pytest.raises(TooLarge):
            await small.weigh(Walk(prefix, first=256, most=256, size=1))
        found = await usage(small, prefix, share=1.0)
    assert found.keys == 264
    assert found.bytes > 64 << 20
    await client.delete_prefix(prefix)


def _advance(walk: Walk, *, more: bool) -> Weight:
    """Stand for an answer of as many keys as were asked for, of 10 bytes each."""
    keys = walk.limit
    walk.advance(pb.RangeResponse(kvs=[pb.KeyValue(key=b"key")] * keys, count=keys, more=more))
    return Weight(keys, 10 * keys)


class Slow:
    """Stands for a client whose answers take long, and the longer the more keys are asked for."""

    def __init__(self, *, most: int) -> None:
        self.limits: list[int] = []
        self._most = most

    async def weigh(self, walk: Walk) -> Weight:
        self.limits.append(walk.limit)
        if walk.limit > self._most:
            raise TimedOut("no answer")
        return _advance(walk, more=len(self.limits) < 8)


async def test_a_step_that_takes_too_long_is_repeated_with_fewer_keys() -> None:
    slow: Any = Slow(most=8)
    found = await usage(slow, "/clusters/acme/", share=1.0)
    assert slow.limits == [32, 16, 8, 16, 8, 16, 8, 16, 8][: len(slow.limits)]
    assert found == Usage(sum(each for each in slow.limits if each <= 8), 10 * found.keys)
    hopeless: Any = Slow(most=0)
    with pytest.raises(TimedOut):
        await usage(hopeless, "/clusters/acme/", share=1.0)


async def test_most_of_the_time_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waited = SimpleNamespace(now=100.0), list[float]()

    async def wait(seconds: float) -> None:
        waited.append(seconds)

    class Client:
        async def weigh(self, walk: Walk) -> Weight:
            clock.now += 0.5
            return _advance(walk, more=len(waited) < 3)

    module: Any = sys.modules["kplane.data.usage"]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=wait))
    made: Any = Client()
    await asyncio.wait_for(usage(made, "/clusters/acme/", share=0.1), 60)
    assert waited == pytest.approx([4.5] * 4)
