"""Garbage collection of Leases."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from kplane.provider.coordination.lease_gc import LeaseGC

Loop = type[asyncio.AbstractEventLoop]
Worlds = Callable[..., AbstractAsyncContextManager[Any]]
INTERVAL_SECONDS = 300.0
"""Shorter than the usual hour, which takes long even in virtual time."""


def test_lease_gc_deletes_leases_of_dead_peers_and_clusters(
    made_up_time: Loop, world_of: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.provider.coordination.lease_gc._INTERVAL_SECONDS", INTERVAL_SECONDS)

    async def collected() -> None:
        async with world_of(0.0, 0.0, fence="cluster") as world:
            third = world.join(fence="cluster")
            await asyncio.sleep(100)
            third.kill()
            gone, *world.clusters = world.clusters
            for process in world.processes:
                process.changed.set()
            await asyncio.sleep(100)
            assert {third.announced, f"mcr-shard-{gone}"} <= world.api.leases.keys()

            await asyncio.sleep(3 * INTERVAL_SECONDS)
            living = {process.announced for process in world.processes if process.running}
            assert world.api.leases.keys() == living | {f"mcr-shard-{cluster}" for cluster in world.clusters}
            assert world.settled()

            world.clusters = sorted([*world.clusters, gone])
            for process in world.processes:
                process.changed.set()
            await world.until(world.settled, within=1)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(collected())


async def looks(api: Any, link: Any, *, needed: Callable[[str], bool] = lambda _name: False) -> tuple[str, ...]:
    """Collect twice over the same Leases. Returns the names of the remaining Leases."""
    seen = [api.get(name) for name in api.leases]
    gc = LeaseGC(link, namespace="ns", leases=lambda: seen, needed=needed)
    await gc.collect()
    assert len(api.leases) == len(seen)
    api.edit("taken", holderIdentity="a new holder")
    await gc.collect()
    return tuple(sorted(api.leases))


def test_lease_gc_keeps_needed_long_and_reacquired_leases(made_up_time: Loop, world_of: Worlds) -> None:
    async def kept() -> None:
        async with world_of() as world:
            for name, seconds in {"idle": 20, "needed": 20, "lasts": 7200, "taken": 20}.items():
                spec = {"holderIdentity": "a dead one", "leaseDurationSeconds": seconds}
                world.api.apply({"metadata": {"name": name}, "spec": spec})
            left = await looks(world.api, world.new_link(), needed=lambda name: name == "needed")
            assert left == ("lasts", "needed", "taken")

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(kept())
