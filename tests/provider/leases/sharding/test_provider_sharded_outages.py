"""Peers keep their shards in an outage of their API server, and in a rolling update."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import ProviderError

LONG = ShardTimings(duration_seconds=90, peer_seconds=90)
OUTAGE_SECONDS = 60.0
DRIFT = 0.01
Loop = type[asyncio.AbstractEventLoop]
Worlds = Callable[..., Any]


@settings(max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(
    began=st.floats(0.0, 12.0),
    drifts=st.lists(st.floats(-DRIFT, DRIFT), min_size=1, max_size=3),
    fault=st.sampled_from(["cut", "deaf"]),
)
def test_peers_keep_work_in_an_outage_of_a_minute(
    made_up_time: Loop, world_of: Worlds, began: float, drifts: list[float], fault: str
) -> None:
    async def outage() -> None:
        async with world_of(*drifts, timings=LONG) as world:
            await world.until(world.settled, within=LONG.duration_seconds)
            await asyncio.sleep(60 + began)
            begun, spread = world.begun, world.spread()
            for process in world.processes:
                setattr(process.link.wire, fault, True)
            await asyncio.sleep(OUTAGE_SECONDS)
            assert world.settled()
            for process in world.processes:
                setattr(process.link.wire, fault, False)
            await asyncio.sleep(60)
            assert (world.begun, world.spread()) == (begun, spread)
            assert world.settled()

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(outage())


def moves(world: Any, *, since: int) -> dict[str, int]:
    """Return how often each fence moved to a peer of another name."""
    owners: defaultdict[str, list[str]] = defaultdict(list)
    for number, event in world.api.log:
        name, holder = event.object["metadata"]["name"], event.object["spec"]["holderIdentity"]
        if name.startswith("mcr-shard-") and holder:
            owners[name] = [holder] if number <= since else [*owners[name], holder]
    return {name: sum(before != after for before, after in itertools.pairwise(found)) for name, found in owners.items()}


async def says_yes() -> bool:
    return True


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(
    # Peers that join in turn, and a peer that left: the division differs from that of a fresh start.
    joins=st.lists(st.floats(0.0, 40.0), min_size=0, max_size=3),
    left=st.booleans(),
    pauses=st.lists(st.floats(0.0, 80.0), min_size=4, max_size=4),
    ready_after=st.floats(0.0, 30.0),
    shards=st.integers(1, 16),
)
def test_rolling_update_moves_no_shard_to_another_name(
    made_up_time: Loop,
    world_of: Worlds,
    joins: list[float],
    left: bool,
    pauses: list[float],
    ready_after: float,
    shards: int,
) -> None:
    async def rolled() -> None:
        options = {"timings": LONG, "shards": shards, "returns": says_yes}
        async with world_of(0.0, **options) as world:
            for pause in joins:
                await asyncio.sleep(pause)
                world.join(**options)
            if left:
                leaving = world.join(**options | {"returns": None})
                await asyncio.sleep(100)
                await leaving.stop()
            await asyncio.sleep(200)
            assert world.settled()
            owned, since = world.spread(), len(world.api.log)
            for process, pause in zip(reversed(world.processes[: 1 + len(joins)]), pauses, strict=False):
                await process.stop()
                await asyncio.sleep(pause)
                process.start()
                await asyncio.sleep(ready_after)
            await asyncio.sleep(30)
            assert world.settled()
            assert world.spread() == owned
            assert set(moves(world, since=since).values()) == {0}

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(rolled())


def test_peer_that_does_not_return_is_replaced_after_its_time(made_up_time: Loop, world_of: Worlds) -> None:
    async def gone() -> None:
        async with world_of(0.0, 0.0, timings=LONG, returns=says_yes) as world:
            await asyncio.sleep(120)
            first, _ = world.processes
            await first.stop()
            await asyncio.sleep(LONG.peer_seconds - 5)
            assert world.spread() == [world.shards // 2]
            await world.until(lambda: world.settled() and world.spread() == [world.shards], within=10)
            first.start()
            await world.until(lambda: world.spread() == [world.shards // 2] * 2, within=30)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(gone())


@pytest.mark.parametrize("answer", [False, TimeoutError()])
def test_peer_not_expected_to_return_is_replaced_at_once(made_up_time: Loop, world_of: Worlds, answer: Any) -> None:
    async def says() -> bool:
        if isinstance(answer, Exception):
            raise answer
        return bool(answer)

    async def scaled_down() -> None:
        async with world_of(0.0, 0.0, timings=LONG, returns=says) as world:
            await asyncio.sleep(120)
            await world.processes[0].stop()
            await world.until(lambda: world.settled() and world.spread() == [world.shards], within=2)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(scaled_down())


def test_unused_lease_is_acquired_without_waiting(made_up_time: Loop, world_of: Worlds) -> None:
    """A peer acquires a missing Lease once it is known to be unused; a Lease deleted later still delays it."""
    known: list[str] = []

    def unused(key: str) -> bool:
        if not known:
            raise ProviderError("not read yet")
        return key in known

    async def first_start() -> None:
        async with world_of() as world:
            process = world.join(timings=LONG, unused=unused)
            await asyncio.sleep(20)
            assert (world.spread(), world.holders()) == ([0], {})
            known.extend("012")
            await world.until(lambda: world.spread() == [3], within=3)
            await asyncio.sleep(LONG.duration_seconds - 30)
            assert world.spread() == [3]
            # The watch has seen no such Lease for the duration of a Lease.
            await world.until(lambda: world.spread() == [world.shards], within=15)
            second = world.join(timings=LONG, unused=lambda _key: True)
            await world.until(lambda: world.spread() == [4, 4], within=20)
            process.link.wire.cut = True
            for name, holder in world.holders().items():
                if holder == process.identity:
                    world.api.delete(name)
            await world.until(lambda: second.coordinator.stats.owned == world.shards, within=2 * LONG.duration_seconds)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(first_start())
