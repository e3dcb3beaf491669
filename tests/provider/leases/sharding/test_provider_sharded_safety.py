"""Safety of shards under faults of peers, network and Leases: two peers never work on a cluster together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kplane.provider.coordination.fence import Counts, Fence
from kplane.provider.coordination.lease import clock
from kplane.provider.coordination.shards import ShardTimings

DRIFT = 0.01
FAULTS = ["stop", "kill", "cut", "deaf", "slow", "slow end", "mend", "delete", "free", "rename", "shorten"]
EVENTS = st.lists(st.tuples(st.floats(0.1, 25.0), st.sampled_from(FAULTS), st.integers(0, 2)), min_size=1, max_size=10)
Loop = type[asyncio.AbstractEventLoop]
Worlds = Callable[..., Any]


async def story(world_of: Worlds, events: list[tuple[float, str, int]], drifts: list[float], **options: Any) -> None:
    async with world_of(*drifts, **options) as world:
        for seconds, what, number in events:
            await asyncio.sleep(seconds)
            await world.processes[number].meet(what)
        for process in world.processes:
            process.mend()
        await asyncio.sleep(150)
        assert world.settled(), "somebody is not worked on although all is well"
        assert max(world.spread()) - min(world.spread()) <= 1


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS, drifts=st.lists(st.floats(-DRIFT, DRIFT), min_size=3, max_size=3))
def test_peers_never_work_on_a_cluster_together(
    made_up_time: Loop, events: list[tuple[float, str, int]], drifts: list[float], world_of: Worlds
) -> None:
    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(story(world_of, events, drifts))


@pytest.mark.parametrize(
    ("fault", "fence"), [*((fault, "shard") for fault in FAULTS), *((fault, "cluster") for fault in ("kill", "delete"))]
)
def test_peers_survive_each_single_fault(made_up_time: Loop, fault: str, fence: str, world_of: Worlds) -> None:
    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(story(world_of, [(3.0, fault, 1), (25.0, "mend", 1)], [-DRIFT, 0.0, DRIFT], fence=fence))


@pytest.mark.parametrize("meanwhile", ["slow", "delete", "free", "shorten", "rename"])
def test_isolated_peer_ends_its_work_before_the_next_begins(
    made_up_time: Loop, meanwhile: str, world_of: Worlds
) -> None:
    """The peer stops in time even if its work ends slowly, its last response was late, or other faults occur."""

    async def cut_off(seed: int) -> None:
        async with world_of(-DRIFT, DRIFT) as world:
            first = world.processes[0]
            first.slow_end = 40.0
            await asyncio.sleep(seed)
            if meanwhile == "slow":
                await first.meet(meanwhile)
                await asyncio.sleep(5)
            first.link.wire.cut = True
            await first.meet(meanwhile)
            await world.until(lambda: world.spread() == [0, world.shards], within=90)
            assert world.settled()

    for seed in range(0, 12, 4):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(cut_off(seed))


def test_killed_peer_is_replaced_within_fence_and_probe(made_up_time: Loop, world_of: Worlds) -> None:
    """Criterion 61: other peers take over within the duration of a fence and a probe. The peer Lease lasts longer."""

    async def killed(seed: int) -> None:
        async with world_of(-DRIFT, 0.0, DRIFT) as world:
            await asyncio.sleep(seed)
            world.processes[0].kill()
            await world.until(world.settled, within=world.timings.duration_seconds + world.timings.probe_seconds)

    for seed in range(0, 12, 3):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(killed(seed))


def test_deleted_lease_delays_work_on_a_new_cluster(made_up_time: Loop, world_of: Worlds) -> None:
    """The holder of the deleted Lease may be isolated, and at work until the Lease would have expired."""

    async def deleted() -> None:
        async with world_of(0.0, fence="cluster") as world:
            spec = {"holderIdentity": "cut-off", "leaseDurationSeconds": world.timings.duration_seconds}
            world.api.apply({"metadata": {"name": "mcr-shard-new", "namespace": "ns"}, "spec": spec})
            await asyncio.sleep(1)
            world.api.delete("mcr-shard-new")
            await asyncio.sleep(1)
            world.clusters = [*world.clusters, "new"]
            world.processes[0].changed.set()
            await asyncio.sleep(world.timings.duration_seconds - 3)
            assert not world.working["new"]
            await world.until(world.settled, within=5)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(deleted())


def test_failed_renewal_stops_no_work(made_up_time: Loop, world_of: Worlds) -> None:
    """Criterion 65: work continues while the fence is valid (D4)."""

    async def failing() -> None:
        async with world_of(0.0) as world:
            (process,) = world.processes
            begun = world.begun
            for trouble in ("cut", "deaf"):
                failures = process.coordinator.stats.failures
                setattr(process.link.wire, trouble, True)
                await world.until(lambda: process.coordinator.stats.failures > failures, within=15)  # noqa: B023
                setattr(process.link.wire, trouble, False)
                await asyncio.sleep(60)
            assert world.begun == begun
            assert process.coordinator.stats.lost == 0

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(failing())


def test_unanswered_renewal_ends_work_before_fence_expires(made_up_time: Loop, world_of: Worlds) -> None:
    """Criterion 75: the local clock counts. Running reconciles have `drain_seconds` to end."""

    async def stuck() -> None:
        async with world_of(0.0) as world:
            (process,) = world.processes
            process.slow_end, process.link.wire.deaf = 4.0, True
            await world.until(
                lambda: not any(process.coordinator.may_work(cluster) for cluster in world.clusters), within=20
            )
            # Running reconciles may finish within this time.
            assert max(process.coordinator.grace_seconds(cluster) or 0 for cluster in world.clusters) == pytest.approx(
                4, abs=0.1
            )
            assert any(process.may_write(cluster) for cluster in world.clusters)
            last = max(fence.lease.expires_at for fence in process.coordinator._fences.all())
            await world.until(lambda: not any(world.working.values()), within=10)
            assert process.now() < last - 0.5
            process.link.wire.deaf = False
            await world.until(world.settled, within=40)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(stuck())


def test_fence_is_released_after_its_work_has_drained(made_up_time: Loop, world_of: Worlds) -> None:
    """Criterion 75: the fence is renewed while the drain lasts longer than the fence (D7)."""

    async def handed_over() -> None:
        async with world_of(0.0) as world:
            (first,) = world.processes
            first.slow_end = 30.0
            second = world.join()
            await world.until(lambda: first.coordinator.stats.wanted == world.shards // 2, within=5)
            leaving = [cluster for cluster in world.clusters if not first.coordinator.may_work(cluster)]
            assert leaving
            await asyncio.sleep(28)
            layout, holders = first.coordinator.layout, world.holders()
            assert {holders[layout.lease_name(layout.key_of(cluster))] for cluster in leaving} == {first.identity}
            assert all(first.may_write(cluster) and world.working[cluster] == {first.name} for cluster in leaving)
            await world.until(lambda: world.spread() == [world.shards // 2] * 2, within=5)
            assert all(world.working[cluster] == {second.name} for cluster in leaving)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(handed_over())


def test_failed_begin_affects_no_other_cluster(made_up_time: Loop, world_of: Worlds) -> None:
    """The failed cluster ends before its fence is released, so that two peers never work on it."""

    async def failing() -> None:
        async with world_of(0.0, 0.0) as world:
            first, second = world.processes
            second.failing = next(cluster for cluster in world.clusters if first.coordinator.may_work(cluster))
            told: list[str] = []
            second.coordinator.listen(lambda: 1 // 0)
            second.coordinator.listen(lambda: told.append("taken"))
            await first.stop()
            await asyncio.sleep(60)
            assert world.spread() == [world.shards]
            assert [cluster for cluster in world.clusters if not world.working[cluster]] == [second.failing]
            assert len(told) == world.shards // 2
            second.failing = ""
            await world.until(world.settled, within=10)
            first.start()
            await asyncio.sleep(60)
            assert world.settled()
            assert world.spread() == [world.shards // 2] * 2

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(failing())


async def test_partly_begun_work_ends_before_fence_release() -> None:
    done: list[str] = []

    class Held:
        identity = holder = "me"
        held, expires_at = True, clock() + 60.0

        async def try_acquire(self, **_: Any) -> bool:
            return True

        async def release(self) -> None:
            done.append("given back")

    def begin() -> None:
        raise RuntimeError("a part of it has begun")

    async def end() -> None:
        done.append("ended")

    fence = Fence(
        Held(),  # type: ignore[arg-type]
        timings=ShardTimings(),
        counts=Counts(),
        slots=asyncio.Semaphore(),
        begin=begin,
        end=end,
        absent_since=lambda: None,
        now=clock,
    )
    fence.want(True)
    with pytest.raises(RuntimeError, match="a part of it"):
        await fence.run()
    assert done == ["ended", "given back"]
    assert not fence.working
    assert fence.overrun_at == float("inf")


def test_fence_of_endless_work_expires(made_up_time: Loop, world_of: Worlds) -> None:
    """Criterion 75: the fence is not released, and its renewals end."""

    async def endless() -> None:
        async with world_of(0.0) as world:
            (first,) = world.processes
            first.slow_end = 1000.0
            world.join()
            await world.until(
                lambda: world.spread()[1] == world.shards // 2, within=world.timings.handover_seconds + 60
            )
            assert first.coordinator.stats.owned > world.shards // 2
            assert not any(
                first.may_write(cluster) for cluster in world.clusters if not first.coordinator.may_work(cluster)
            )
            first.slow_end = 0.0
            await asyncio.sleep(1000)
            assert world.spread() == [world.shards // 2] * 2

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(endless())


def test_processes_of_equal_identity_stay_safe(
    made_up_time: Loop, caplog: pytest.LogCaptureFixture, world_of: Worlds
) -> None:
    async def twins() -> None:
        async with world_of(0.0, identity="twin") as world:
            world.join(identity="twin")
            await asyncio.sleep(100)
            assert world.settled()

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(twins())
    assert "another process uses the identity of peer twin" in caplog.text
