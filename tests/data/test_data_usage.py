"""Usage of a prefix in a real etcd, measured in small steps."""

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


async def test_usage_counts_only_keys_and_values_of_prefix(
    client: Client, new_prefix: Callable[[], str], eventually: Callable[..., Any]
) -> None:
    prefix, empty = new_prefix(), new_prefix()
    keys = [f"{prefix}{number:04}".encode() for number in range(700)]
    for start in range(0, 700, 100):
        await client.apply([Put(key, b"v" * 500) for key in keys[start : start + 100]])
    for neighbour in (prefix.rstrip("/"), f"{prefix.rstrip('/')}0/key"):
        await client.put(neighbour.encode(), b"beside")

    measurement = await usage(client, prefix, share=1.0)
    net_bytes = sum(len(key) + 500 for key in keys)
    assert measurement.keys == 700
    # Etcd stores metadata with each key.
    assert net_bytes < measurement.bytes < net_bytes + 700 * 40
    assert (await usage(client, empty, share=1.0)).keys == 0

    assert await estimate(client, prefix, seconds=60.0) == measurement
    # After the first step, the estimate extrapolates from its keys. The size in use, which bounds the estimate, has the
    # keys after the next commit.
    await eventually(client.size_in_use, lambda size: size > measurement.bytes)
    estimation = await estimate(client, prefix, seconds=0.0)
    assert estimation.keys == 700
    assert abs(estimation.bytes - measurement.bytes) < measurement.bytes / 100
    assert (await estimate(client, empty, seconds=0.0)).keys == 0
    with pytest.raises(InvalidPrefix):
        await usage(client, "/", share=1.0)


async def test_usage_bounds_answers_for_large_values_after_small_values(
    etcd: Etcd, client: Client, prefix: str
) -> None:
    """Steps grow while values are small. A step of that size over the large values would return 64 MiB."""
    for start in range(0, 200, 100):
        await client.apply([Put(f"{prefix}a{number:04}".encode(), b"v") for number in range(start, start + 100)])
    for number in range(64):
        await client.put(f"{prefix}b{number:04}".encode(), bytes(1 << 20))
    files = Credentials.in_directory(etcd.directory / "root")
    async with Client(etcd.url, credentials=files, receive_at_most=8 << 20) as small_client:
        with pytest.raises(TooLarge):
            await small_client.weigh(Walk(prefix, first=256, most=256, size=1))
        measurement = await usage(small_client, prefix, share=1.0)
    assert measurement.keys == 264
    assert measurement.bytes > 64 << 20
    await client.delete_prefix(prefix)


def _advance(walk: Walk, *, more: bool) -> Weight:
    """Simulate an answer with the requested number of keys, of 10 bytes each."""
    keys = walk.limit
    walk.advance(pb.RangeResponse(kvs=[pb.KeyValue(key=b"key")] * keys, count=keys, more=more))
    return Weight(keys, 10 * keys)


class Slow:
    """Fake client whose calls time out for more keys than `most`."""

    def __init__(self, *, most: int) -> None:
        self.limits: list[int] = []
        self._most = most

    async def weigh(self, walk: Walk) -> Weight:
        self.limits.append(walk.limit)
        if walk.limit > self._most:
            raise TimedOut("no answer")
        return _advance(walk, more=len(self.limits) < 8)


async def test_usage_retries_slow_step_with_fewer_keys() -> None:
    slow_client: Any = Slow(most=8)
    measurement = await usage(slow_client, "/clusters/acme/", share=1.0)
    assert slow_client.limits == [32, 16, 8, 16, 8, 16, 8, 16, 8][: len(slow_client.limits)]
    assert measurement == Usage(sum(limit for limit in slow_client.limits if limit <= 8), 10 * measurement.keys)
    stuck_client: Any = Slow(most=0)
    with pytest.raises(TimedOut):
        await usage(stuck_client, "/clusters/acme/", share=1.0)


async def test_usage_waits_between_steps_by_its_time_share(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits = SimpleNamespace(now=100.0), list[float]()

    async def wait(seconds: float) -> None:
        waits.append(seconds)

    class Client:
        async def weigh(self, walk: Walk) -> Weight:
            clock.now += 0.5
            return _advance(walk, more=len(waits) < 3)

    module: Any = sys.modules["kplane.data.usage"]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(module, "asyncio", SimpleNamespace(sleep=wait))
    client: Any = Client()
    await asyncio.wait_for(usage(client, "/clusters/acme/", share=0.1), 60)
    assert waits == pytest.approx([4.5] * 4)
