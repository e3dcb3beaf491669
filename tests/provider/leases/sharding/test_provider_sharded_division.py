"""The division of clusters as peers and clusters come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kplane.provider.coordination.peers import Announcement
from kplane.provider.coordination.shards import ShardTimings

Loop = type[asyncio.AbstractEventLoop]
Worlds = Callable[..., Any]


def test_leaving_peer_hands_over_at_once(made_up_time: Loop, world_of: Worlds) -> None:
    async def leaving() -> None:
        async with world_of(0.0, 0.0) as world:
            first, second = world.processes
            await first.stop()
            assert first.announced not in world.api.leases
            assert first.identity not in world.holders().values()
            await world.until(lambda: world.settled() and world.spread() == [world.shards], within=2)
            assert second.coordinator.stats.peers == (second.identity,)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(leaving())


def test_listener_is_called_when_clusters_are_taken_over(made_up_time: Loop, world_of: Worlds) -> None:
    """The listener is called for each takeover, after the peer owns the clusters."""

    async def leaving() -> None:
        async with world_of(0.0, 0.0) as world:
            first, second = world.processes
            told: list[int] = []
            second.coordinator.listen(lambda: told.append(sum(map(second.coordinator.may_work, world.clusters))))
            await asyncio.sleep(60)
            assert told == []
            await first.stop()
            # The peer also acquires a shard without clusters, perhaps as its last shard.
            await world.until(lambda: world.settled() and len(told) >= world.shards // 2, within=2)
            assert len(told) == world.shards // 2
            assert told[-1] == len(world.clusters)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(leaving())


async def test_announcement_is_deleted_after_its_pending_write(eventually: Callable[..., Any]) -> None:
    """A late write would create the announcement again, and other peers would wait for the ended peer."""
    arrived: list[str] = []
    gate = asyncio.Event()

    class Slow:
        async def apply(self, _: Any, body: dict[str, Any], *, field_manager: str, force: bool) -> dict[str, Any]:
            arrived.append("asked")
            await gate.wait()
            arrived.append("said")
            return body

        async def delete(self, *_: Any, **__: Any) -> None:
            arrived.append("deleted")

    announcement = Announcement(
        Slow(),  # type: ignore[arg-type]
        namespace="ns",
        prefix="mcr-peer",
        identity="it",
        weight=1,
        layout="mcr-shard/64",
        timings=ShardTimings(),
    )
    keeping = asyncio.create_task(announcement.keep())
    await eventually(lambda: arrived == ["asked"])
    deleting = asyncio.create_task(announcement.delete())
    await asyncio.sleep(0.01)
    gate.set()
    await deleting
    await announcement.write()
    assert arrived == ["asked", "said", "deleted"]
    keeping.cancel()
    await asyncio.wait([keeping])


def test_peers_move_few_shards_when_joining_and_leaving(made_up_time: Loop, world_of: Worlds) -> None:
    """Peers: 1, then 3, then 2. A new peer reads the other peers first, and acquires only its part (D8)."""

    async def scaled() -> None:
        async with world_of(0.0) as world:
            world.join()
            world.join()
            await asyncio.sleep(30)
            assert sorted(world.spread()) == [2, 3, 3]
            assert (
                sum(process.coordinator.stats.acquired for process in world.processes)
                == world.shards + world.shards - world.spread()[0]
            )
            before = [process.coordinator.stats.acquired for process in world.processes[:2]]
            part = world.spread()[2]
            await world.processes[2].stop()
            await asyncio.sleep(30)
            assert world.spread() == [4, 4]
            assert sum(process.coordinator.stats.acquired for process in world.processes[:2]) - sum(before) == part

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(scaled())


def test_peers_starting_together_acquire_only_their_parts(made_up_time: Loop, world_of: Worlds) -> None:
    """No peer acquires a shard that it has to release again (D8); the parts follow the weights."""

    async def together() -> None:
        async with world_of(0.0, 0.0, 0.0, 0.0) as world:
            assert world.spread() == [2, 2, 2, 2]
            assert sum(process.coordinator.stats.acquired for process in world.processes) == world.shards
        async with world_of() as world:
            world.join()
            world.join(weight=3)
            await asyncio.sleep(60)
            assert world.spread() == [world.shards // 4, world.shards * 3 // 4]

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(together())


@pytest.mark.parametrize("other", [{"shards": 16}, {"fence": "cluster"}, {"fence_prefix": "other"}], ids=str)
def test_peer_of_another_layout_waits_until_others_have_left(
    made_up_time: Loop, other: dict[str, Any], world_of: Worlds
) -> None:
    async def divided() -> None:
        async with world_of(0.0) as world:
            (first,) = world.processes
            second = world.join(**other)
            await asyncio.sleep(100)
            assert world.spread() == [world.shards, 0]
            await first.stop()
            await world.until(world.settled, within=world.timings.duration_seconds + world.timings.probe_seconds)
            assert second.coordinator.stats.clusters == len(world.clusters)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(divided())


def test_cluster_changes_leave_others_at_work(made_up_time: Loop, world_of: Worlds) -> None:
    """Criterion 64: a change of a cluster does not affect the other clusters (D3)."""

    async def changing(fence: str) -> None:
        async with world_of(0.0, 0.0, fence=fence) as world:

            async def change(clusters: list[str]) -> None:
                world.clusters = sorted(clusters)
                for process in world.processes:
                    process.changed.set()
                await asyncio.sleep(30)

            begun, known = world.begun, world.clusters
            await change(known[1:])
            assert not world.working[known[0]]
            assert world.settled()
            if fence == "shard":
                assert world.begun == begun
            await change([*known, "new"])
            assert world.settled()

    for fence in ("shard", "cluster"):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(changing(fence))


def test_new_cluster_with_its_own_fence_begins_at_once(made_up_time: Loop, world_of: Worlds) -> None:
    """The cluster had no Lease for the duration of a Lease, so no peer can be at work."""

    async def coming() -> None:
        async with world_of(0.0, fence="cluster") as world:
            world.clusters = [*world.clusters, "new"]
            world.processes[0].changed.set()
            await world.until(world.settled, within=1)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(coming())


def test_fences_of_64_shards_cost_seven_writes_a_second(made_up_time: Loop, world_of: Worlds) -> None:
    async def measured() -> None:
        async with world_of(0.0, shards=64) as world:
            before = world.api.writes
            await asyncio.sleep(300)
            assert 6.4 <= (world.api.writes - before) / 300 <= 8

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(measured())
