"""Requests that wait until this replica has the routes that other replicas serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.gateway import freshness as freshness_module
from kplane.gateway.clients import NOBODY, Client
from kplane.gateway.control_planes import Progress
from kplane.gateway.freshness import Freshness
from kplane.provider import Unreachable

CLIENT = Client("192.0.2.7")


class Replicas:
    """Progress of this replica, and the newest progress of all replicas."""

    def __init__(self) -> None:
        self.own = Progress(1, 1)
        self.newest = Progress(1, 1)
        self.reads = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.freshness = Freshness(self.read, self.has, patience_seconds=0.2, all_together=30, each_client=20)

    async def read(self) -> Progress:
        self.reads += 1
        newest = self.newest
        await self.answers.wait()
        return newest

    def has(self, progress: Progress) -> bool:
        return self.own >= progress


@pytest.fixture
async def replicas(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Replicas]:
    monkeypatch.setattr(freshness_module, "_GATHERED_SECONDS", 0.02)
    replicas = Replicas()
    yield replicas
    await replicas.freshness.aclose()


async def test_waiting_requests_share_a_read(replicas: Replicas) -> None:
    assert await asyncio.gather(*(replicas.freshness.wait(CLIENT) for _ in range(10))) == [True] * 10
    assert replicas.reads == 1


async def test_request_waits_until_routes_arrive(replicas: Replicas, eventually: Callable[..., Any]) -> None:
    replicas.newest = Progress(1, 2)
    request = asyncio.create_task(replicas.freshness.wait(CLIENT))
    await eventually(lambda: replicas.reads)
    replicas.own = Progress(1, 2)
    assert await request


async def test_wait_returns_false_when_routes_do_not_arrive(replicas: Replicas) -> None:
    replicas.newest = Progress(2, 1)
    assert not await replicas.freshness.wait(CLIENT)
    assert replicas.freshness.waiting == 0


async def test_later_request_waits_for_later_read(replicas: Replicas, eventually: Callable[..., Any]) -> None:
    """A read that has begun may miss what a client knows by now."""
    replicas.answers.clear()
    early = asyncio.create_task(replicas.freshness.wait(CLIENT))
    await eventually(lambda: replicas.reads)
    replicas.newest = Progress(1, 2)
    late = asyncio.create_task(replicas.freshness.wait(CLIENT))
    await eventually(lambda: replicas.reads, lambda reads: reads == 2)
    replicas.answers.set()
    assert await asyncio.gather(early, late) == [True, False]


async def test_wait_returns_false_when_management_cluster_is_away(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read() -> Progress:
        raise Unreachable("no connection", kind="connect")

    assert not await Freshness(read, replicas.has).wait(CLIENT)
    monkeypatch.setattr(freshness_module, "_READ_SECONDS", 0.02)
    replicas.answers.clear()
    assert not await replicas.freshness.wait(CLIENT)


async def test_requests_beyond_limits_do_not_wait(replicas: Replicas, eventually: Callable[..., Any]) -> None:
    replicas.answers.clear()
    waiting = [asyncio.create_task(replicas.freshness.wait(CLIENT)) for _ in range(20)]
    await eventually(lambda: replicas.freshness.waiting, lambda count: count == 20)
    assert await replicas.freshness.wait(CLIENT)
    waiting += [asyncio.create_task(replicas.freshness.wait(NOBODY)) for _ in range(10)]
    await eventually(lambda: replicas.freshness.waiting, lambda count: count == 30)
    assert await replicas.freshness.wait(Client("192.0.2.8"))
    # A client that disconnects leaves its place, and the read of others continues.
    waiting.pop(0).cancel()
    await eventually(lambda: replicas.freshness.waiting, lambda count: count == 29)
    replicas.answers.set()
    assert await asyncio.gather(*waiting) == [True] * 29
