"""Whatever happens to peers, network and Leases: never do two work on one cluster, and one does in the end.

Coordinators run in a loop whose time is made up, against an API server that is slow, or cannot be reached, or whose
answers are lost; each process has a clock of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Self

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provider import ClusterNotOwned, Conflict, NotFound, ObjectList, Unreachable, WatchEvent
from provider.coordinator.peers import Announcement
from provider.coordinator.sharded import Sharded
from provider.coordinator.shards import ShardTimings
from provider.errors import Invalid

TIMINGS = ShardTimings()
SHARDS = 8
CLUSTERS = [f"cluster-{number}" for number in range(12)]
DRIFT = 0.01
Loop = type[asyncio.AbstractEventLoop]


class Api:
    """Keeps Leases, as the API server does."""

    def __init__(self) -> None:
        self.leases: dict[str, dict[str, Any]] = {}
        self.log: list[tuple[int, WatchEvent]] = []
        self.writes = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def get(self, name: str) -> dict[str, Any]:
        if name not in self.leases:
            raise NotFound(404, "NotFound", "there is none")
        return copy.deepcopy(self.leases[name])

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        known = self.leases.get(metadata["name"])
        if known is None and "uid" in metadata:
            raise Conflict(409, "Conflict", "it is gone")
        if known is not None:
            if "resourceVersion" not in metadata:
                raise Invalid(422, "Invalid", "must be specified for an update")
            if metadata["resourceVersion"] != known["metadata"]["resourceVersion"]:
                raise Conflict(409, "Conflict", "it was changed")
        return self.apply(body)

    def apply(self, body: dict[str, Any]) -> dict[str, Any]:
        self.writes += 1
        name = body["metadata"]["name"]
        known, lease = self.leases.get(name), copy.deepcopy(body)
        version = len(self.log) + 1
        lease["metadata"] |= {"uid": known["metadata"]["uid"] if known else f"uid-{version}"}
        self._note("ADDED" if known is None else "MODIFIED", name, lease)
        return self.get(name)

    def delete(self, name: str, uid: str | None = None) -> dict[str, Any]:
        found = self.get(name)
        if uid not in {None, found["metadata"]["uid"]}:
            raise Conflict(409, "Conflict", "it is another one")
        self._note("DELETED", name, found)
        del self.leases[name]
        return {}

    def edit(self, name: str, **spec: Any) -> None:
        if name in self.leases:
            found = self.get(name)
            self.put({**found, "spec": found["spec"] | spec})

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _note(self, kind: str, name: str, lease: dict[str, Any]) -> None:
        version = len(self.log) + 1
        lease["metadata"]["resourceVersion"] = str(version)
        self.leases[name] = lease
        self.log.append((version, WatchEvent(kind, copy.deepcopy(lease))))
        for future in tuple(self._waiting):
            if not future.done():
                future.set_result(None)


class Link:
    """The client of one process, and the network between it and the server."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.slowness = 0.02
        self.cut = False
        self.deaf = False
        """Requests arrive, and answers do not."""

    async def get(self, _: Any, name: str, *, namespace: str) -> dict[str, Any]:
        return await self._call(lambda: self.api.get(name))

    async def replace(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call(lambda: self.api.put(body))

    async def apply(self, _: Any, body: dict[str, Any], *, field_manager: str) -> dict[str, Any]:
        return await self._call(lambda: self.api.apply(body))

    async def delete(self, _: Any, name: str, *, namespace: str, uid: str | None) -> dict[str, Any]:
        return await self._call(lambda: self.api.delete(name, uid))

    async def list(self, _: Any, **__: Any) -> ObjectList:
        def items() -> Any:
            return ObjectList(copy.deepcopy(list(self.api.leases.values())), str(len(self.api.log)))

        return await self._call(items)

    def watch(self, _: Any, *, resource_version: str, **__: Any) -> Stream:
        return Stream(self, int(resource_version))

    async def _call(self, act: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if not self.cut:
            loop.call_later(self.delay(), self._arrive, act, answer)
        try:
            async with asyncio.timeout(30.0):
                return await answer
        except TimeoutError:
            raise Unreachable("no answer", kind="timeout") from None

    def _arrive(self, act: Callable[[], Any], answer: asyncio.Future[Any]) -> None:
        try:
            found, problem = act(), None
        except (NotFound, Conflict, Invalid) as error:
            found, problem = None, error
        if not self.deaf:
            asyncio.get_running_loop().call_later(self.delay(), self._answer, answer, found, problem)

    @staticmethod
    def _answer(answer: asyncio.Future[Any], found: Any, problem: Exception | None) -> None:
        if answer.done():
            return
        if problem is not None:
            answer.set_exception(problem)
        else:
            answer.set_result(found)

    def delay(self) -> float:
        return random.uniform(0, self.slowness)


class Stream:
    """A watch; where the network is cut nothing comes, and what was missed comes later."""

    def __init__(self, link: Link, position: int) -> None:
        self._link, self._position = link, position

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def open(self) -> None:
        await asyncio.sleep(self._link.delay())

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> WatchEvent:
        log = self._link.api.log
        while self._link.cut or self._link.deaf or self._position >= len(log):
            if self._position >= len(log):
                await self._link.api.wait()
            else:
                await asyncio.sleep(0.1)
        await asyncio.sleep(self._link.delay())
        self._position += 1
        event = log[self._position - 1][1]
        return WatchEvent(event.type, copy.deepcopy(event.object))


class World:
    """Who works on what."""

    def __init__(self, clusters: Iterable[str] = CLUSTERS) -> None:
        self.api = Api()
        self.clusters = sorted(clusters)
        self.begun = 0
        self.working: defaultdict[str, set[str]] = defaultdict(set)
        self.together: list[tuple[str, set[str]]] = []
        self.processes: list[Process] = []

    def begin(self, cluster: str, name: str) -> None:
        if name not in self.working[cluster]:
            self.begun += 1
        self.working[cluster].add(name)
        if len(self.working[cluster]) > 1:
            self.together.append((cluster, set(self.working[cluster])))

    def holders(self) -> dict[str, str]:
        leases = self.api.leases.items()
        return {name: lease["spec"]["holderIdentity"] for name, lease in leases if name.startswith("mcr-shard-")}

    def spread(self) -> list[int]:
        """How many fences each process works behind."""
        return [each.coordinator.stats.owned for each in self.processes if each.running]

    def settled(self) -> bool:
        return all(len(self.working[cluster]) == 1 for cluster in self.clusters)

    async def watch_writers(self) -> None:
        """Look all the time whether two may write."""
        while True:
            for cluster in self.clusters:
                allowed = {each.name for each in self.processes if each.running and each.may_write(cluster)}
                if len(allowed) > 1:
                    self.together.append((cluster, allowed))
            await asyncio.sleep(0.2)


class Process:
    """One replica: its workplace, its client and its clock."""

    def __init__(self, number: int, world: World, *, drift: float = 0.0, **options: Any) -> None:
        self.number, self.world = number, world
        self.rate, self.offset = 1.0 + drift, number * 1000.0
        self.options = {"shards": SHARDS} | options
        self.link = Link(world.api)
        self.slow_end = 0.0
        self.runs = 0
        self.running = False
        self.task: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        world.processes.append(self)

    @property
    def name(self) -> str:
        return f"process-{self.number}-{self.runs}"

    @property
    def identity(self) -> str:
        return f"replica-{self.number}"

    @property
    def announced(self) -> str:
        return f"mcr-peer-{self.identity}"

    def now(self) -> float:
        return asyncio.get_running_loop().time() * self.rate + self.offset

    def start(self) -> Process:
        if not self.running:
            self.runs += 1
            self.running = True
            self.coordinator = Sharded(
                self.link,  # type: ignore[arg-type]
                namespace="ns",
                on_overrun=None,
                now=self.now,
                **{"identity": self.identity} | self.options,
            )
            place = Place(self, self.coordinator)
            self.task = asyncio.create_task(self.coordinator.run(place))
        return self

    def may_write(self, cluster: str) -> bool:
        with contextlib.suppress(ClusterNotOwned):
            self.coordinator.require_write(cluster)
            return True
        return False

    async def stop(self) -> None:
        """SIGTERM."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait((self.task,))
            self.running = False

    def kill(self) -> None:
        """SIGKILL: nothing that it does now reaches anybody, and it is started again under the same name."""
        self.link.cut = True
        self.running = False
        for working in self.world.working.values():
            working.discard(self.name)
        if self.task is not None:
            self.task.cancel()
        self.link = Link(self.world.api)

    def mend(self) -> None:
        self.link.cut = self.link.deaf = False
        self.link.slowness, self.slow_end = 0.02, 0.0
        self.start()


class Place:
    """Where a coordinator allows and withdraws."""

    def __init__(self, process: Process, coordinator: Sharded) -> None:
        self._process, self._coordinator, self._name = process, coordinator, process.name
        process.changed.set()

    def names(self) -> list[str]:
        return self._process.world.clusters

    async def wait_changed(self) -> None:
        await self._process.changed.wait()
        self._process.changed.clear()

    def allow(self, name: str) -> None:
        if self._process.name == self._name and self._process.running:
            assert self._coordinator.may_work(name)
            self._process.world.begin(name, self._name)

    async def withdraw(self, name: str) -> None:
        fence = self._coordinator._fences.of(name)
        assert fence is not None
        working, now = self._process.world.working[name], self._process.now
        slow_until = now() + self._process.slow_end
        while now() < slow_until:
            await asyncio.sleep(0.05)
            if now() >= fence.overrun_at:
                # The process is ended now, and so its work; here it stays, and must not be able to write.
                working.discard(self._name)
        working.discard(self._name)


FAULTS = ["stop", "kill", "cut", "deaf", "slow", "slow end", "mend", "delete", "free", "rename", "shorten"]
EVENTS = st.lists(st.tuples(st.floats(0.1, 25.0), st.sampled_from(FAULTS), st.integers(0, 2)), min_size=1, max_size=10)


async def happen(what: str, process: Process) -> None:
    """Let one thing go wrong, or be mended."""
    match what:
        case "stop":
            await process.stop()
        case "kill":
            process.kill()
        case "cut":
            process.link.cut = True
        case "deaf":
            process.link.deaf = True
        case "slow":
            process.link.slowness = 3.0
        case "slow end":
            process.slow_end = 100.0
        case "mend":
            process.mend()
        case _:
            edit(what, process)


def edit(what: str, process: Process) -> None:
    """Have somebody change Leases by hand."""
    api = process.world.api
    for name in [name for name, holder in process.world.holders().items() if holder == process.identity]:
        match what:
            case "delete":
                api.delete(name)
            case "free":
                api.edit(name, holderIdentity="")
            case "rename":
                api.edit(name, holderIdentity="somebody")
            case "shorten":
                api.edit(name, leaseDurationSeconds=1)
    if what == "delete" and process.announced in api.leases:
        api.delete(process.announced)


@contextlib.asynccontextmanager
async def world_of(*drifts: float, **options: Any) -> AsyncIterator[World]:
    """Give processes that have shared the clusters for a while; in the end nobody has worked together."""
    world = World(options.pop("clusters", CLUSTERS))
    for number, drift in enumerate(drifts):
        Process(number, world, drift=drift, **options).start()
    watching = asyncio.create_task(world.watch_writers())
    await asyncio.sleep(60)
    assert world.settled()
    yield world
    watching.cancel()
    await asyncio.gather(*(process.stop() for process in world.processes))
    assert world.together == []
    assert set().union(*world.working.values()) == set()


async def until(condition: Callable[[], bool], *, within: float) -> float:
    """Wait, and return for how long."""
    now = asyncio.get_running_loop().time
    began = now()
    while not condition():
        assert now() - began < within, f"not within {within} s"
        await asyncio.sleep(0.05)
    return now() - began


async def story(events: list[tuple[float, str, int]], drifts: list[float], **options: Any) -> None:
    async with world_of(*drifts, **options) as world:
        for seconds, what, number in events:
            await asyncio.sleep(seconds)
            await happen(what, world.processes[number])
        for process in world.processes:
            process.mend()
        await asyncio.sleep(150)
        assert world.settled(), "somebody is not worked on although all is well"
        assert max(world.spread()) - min(world.spread()) <= 1


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(events=EVENTS, drifts=st.lists(st.floats(-DRIFT, DRIFT), min_size=3, max_size=3))
def test_never_do_two_work_on_a_cluster(
    made_up_time: Loop, events: list[tuple[float, str, int]], drifts: list[float]
) -> None:
    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(story(events, drifts))


@pytest.mark.parametrize(
    ("fault", "fence"), [*((fault, "shard") for fault in FAULTS), *((fault, "cluster") for fault in ("kill", "delete"))]
)
def test_each_fault_alone(made_up_time: Loop, fault: str, fence: str) -> None:
    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(story([(3.0, fault, 1), (25.0, "mend", 1)], [-DRIFT, 0.0, DRIFT], fence=fence))


@pytest.mark.parametrize("meanwhile", ["slow", "delete", "free", "shorten", "rename"])
def test_a_peer_that_is_cut_off_has_ended_its_work_before_the_next_one_begins(
    made_up_time: Loop, meanwhile: str
) -> None:
    """Though it takes its time to end, and whatever else was done; the last answer that it got may have been late."""

    async def cut_off(seed: int) -> None:
        async with world_of(-DRIFT, DRIFT) as world:
            first = world.processes[0]
            first.slow_end = 40.0
            await asyncio.sleep(seed)
            if meanwhile == "slow":
                await happen(meanwhile, first)
                await asyncio.sleep(5)
            first.link.cut = True
            await happen(meanwhile, first)
            await until(lambda: world.spread() == [0, SHARDS], within=90)
            assert world.settled()

    for seed in range(0, 12, 4):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(cut_off(seed))


def test_a_peer_that_is_killed_is_replaced_in_time(made_up_time: Loop) -> None:
    """Criterion 61: within the duration of a fence and a probe, though it is a peer for longer than that."""

    async def killed(seed: int) -> None:
        async with world_of(-DRIFT, 0.0, DRIFT) as world:
            await asyncio.sleep(seed)
            world.processes[0].kill()
            await until(world.settled, within=TIMINGS.duration_seconds + TIMINGS.probe_seconds)

    for seed in range(0, 12, 3):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(killed(seed))


def test_one_failed_renewal_stops_nothing(made_up_time: Loop) -> None:
    """Criterion 65: while the fence is valid, work goes on (D4)."""

    async def failing() -> None:
        async with world_of(0.0) as world:
            (process,) = world.processes
            begun = world.begun
            for trouble in ("cut", "deaf"):
                failures = process.coordinator.stats.failures
                setattr(process.link, trouble, True)
                await until(lambda: process.coordinator.stats.failures > failures, within=15)  # noqa: B023
                setattr(process.link, trouble, False)
                await asyncio.sleep(60)
            assert world.begun == begun
            assert process.coordinator.stats.lost == 0

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(failing())


def test_a_renewal_that_gets_no_answer_ends_the_work_before_the_fence_runs_out(made_up_time: Loop) -> None:
    """Criterion 75: by the local clock; what takes its time has `drain_seconds` for it."""

    async def stuck() -> None:
        async with world_of(0.0) as world:
            (process,) = world.processes
            process.slow_end, process.link.deaf = 4.0, True
            await until(lambda: not any(process.coordinator.may_work(cluster) for cluster in CLUSTERS), within=20)
            # What is under way may come to its end, but not later than that.
            assert max(process.coordinator.grace_seconds(cluster) or 0 for cluster in CLUSTERS) == pytest.approx(
                4, abs=0.1
            )
            assert any(process.may_write(cluster) for cluster in CLUSTERS)
            last = max(fence.lease.expires_at for fence in process.coordinator._fences.all())
            await until(lambda: not any(world.working.values()), within=10)
            assert process.now() < last - 0.5
            process.link.deaf = False
            await until(world.settled, within=40)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(stuck())


def test_work_is_drained_before_its_fence_is_given_back(made_up_time: Loop) -> None:
    """Criterion 75: also where that takes longer than a fence lasts; it is renewed meanwhile (D7)."""

    async def handed_over() -> None:
        async with world_of(0.0) as world:
            (first,) = world.processes
            first.slow_end = 30.0
            second = Process(1, world).start()
            await until(lambda: first.coordinator.stats.wanted == SHARDS // 2, within=5)
            leaving = [cluster for cluster in CLUSTERS if not first.coordinator.may_work(cluster)]
            assert leaving
            await asyncio.sleep(28)
            layout, holders = first.coordinator.layout, world.holders()
            assert {holders[layout.lease_name(layout.key_of(cluster))] for cluster in leaving} == {first.identity}
            assert all(first.may_write(cluster) and world.working[cluster] == {first.name} for cluster in leaving)
            await until(lambda: world.spread() == [SHARDS // 2] * 2, within=5)
            assert all(world.working[cluster] == {second.name} for cluster in leaving)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(handed_over())


def test_a_fence_of_work_that_never_ends_runs_out(made_up_time: Loop) -> None:
    """Criterion 75: it is not given back, and not renewed for ever either."""

    async def endless() -> None:
        async with world_of(0.0) as world:
            (first,) = world.processes
            first.slow_end = 1000.0
            Process(1, world).start()
            await until(lambda: world.spread()[1] == SHARDS // 2, within=TIMINGS.handover_seconds + 35)
            assert first.coordinator.stats.owned > SHARDS // 2
            assert not any(first.may_write(each) for each in CLUSTERS if not first.coordinator.may_work(each))
            first.slow_end = 0.0
            await asyncio.sleep(1000)
            assert world.spread() == [SHARDS // 2] * 2

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(endless())


def test_a_peer_that_leaves_is_followed_at_once(made_up_time: Loop) -> None:
    async def leaving() -> None:
        async with world_of(0.0, 0.0) as world:
            first, second = world.processes
            await first.stop()
            assert first.announced not in world.api.leases
            assert first.identity not in world.holders().values()
            await until(lambda: world.settled() and world.spread() == [SHARDS], within=2)
            assert second.coordinator.stats.peers == (second.identity,)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(leaving())


def test_who_gets_clusters_of_others_is_told(made_up_time: Loop) -> None:
    """Each time, once they are its own; and not what it had before."""

    async def leaving() -> None:
        async with world_of(0.0, 0.0) as world:
            first, second = world.processes
            told: list[int] = []
            second.coordinator.listen(lambda: told.append(sum(map(second.coordinator.may_work, CLUSTERS))))
            await asyncio.sleep(60)
            assert told == []
            await first.stop()
            await until(world.settled, within=2)
            assert len(told) == SHARDS // 2
            assert told[-1] == len(CLUSTERS)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(leaving())


async def test_a_peer_is_gone_only_when_what_it_last_said_has_arrived(eventually: Callable[..., Any]) -> None:
    """It would be there again otherwise, and others would wait for one that comes no more."""
    arrived: list[str] = []
    gate = asyncio.Event()

    class Slow:
        async def apply(self, _: Any, body: dict[str, Any], *, field_manager: str) -> dict[str, Any]:
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
        timings=TIMINGS,
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


def test_only_what_must_moves_when_peers_come_and_go(made_up_time: Loop) -> None:
    """From one to three to two: a peer that comes learns who is there first, and takes no more than its part (D8)."""

    async def scaled() -> None:
        async with world_of(0.0) as world:
            Process(1, world).start()
            Process(2, world).start()
            await asyncio.sleep(30)
            assert sorted(world.spread()) == [2, 3, 3]
            assert (
                sum(each.coordinator.stats.acquired for each in world.processes) == SHARDS + SHARDS - world.spread()[0]
            )
            before = [each.coordinator.stats.acquired for each in world.processes[:2]]
            part = world.spread()[2]
            await world.processes[2].stop()
            await asyncio.sleep(30)
            assert world.spread() == [4, 4]
            assert sum(each.coordinator.stats.acquired for each in world.processes[:2]) - sum(before) == part

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(scaled())


def test_peers_that_begin_together_take_their_parts(made_up_time: Loop) -> None:
    """None takes what it has to give back (D8); weights are heeded."""

    async def together() -> None:
        async with world_of(0.0, 0.0, 0.0, 0.0) as world:
            assert world.spread() == [2, 2, 2, 2]
            assert sum(each.coordinator.stats.acquired for each in world.processes) == SHARDS
        world = World()
        small, large = Process(0, world).start(), Process(1, world, weight=3).start()
        await asyncio.sleep(60)
        assert world.spread() == [SHARDS // 4, SHARDS * 3 // 4]
        await asyncio.gather(small.stop(), large.stop())

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(together())


@pytest.mark.parametrize("other", [{"shards": 16}, {"fence": "cluster"}, {"fence_prefix": "other"}], ids=str)
def test_who_divides_in_another_way_waits_until_the_others_are_gone(made_up_time: Loop, other: dict[str, Any]) -> None:
    async def divided() -> None:
        async with world_of(0.0) as world:
            (first,) = world.processes
            second = Process(1, world, **other).start()
            await asyncio.sleep(100)
            assert world.spread() == [SHARDS, 0]
            await first.stop()
            await until(world.settled, within=TIMINGS.duration_seconds + TIMINGS.probe_seconds)
            assert second.coordinator.stats.clusters == len(CLUSTERS)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(divided())


def test_two_processes_of_one_name_do_no_harm(made_up_time: Loop, caplog: pytest.LogCaptureFixture) -> None:
    async def twins() -> None:
        async with world_of(0.0, identity="twin") as world:
            Process(1, world, identity="twin").start()
            await asyncio.sleep(100)
            assert world.settled()

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(twins())
    assert "another process takes part as peer twin" in caplog.text


def test_clusters_come_and_go(made_up_time: Loop) -> None:
    """Criterion 64: what happens to one cluster is none of the others' business (D3)."""

    async def changing(fence: str) -> None:
        async with world_of(0.0, 0.0, fence=fence) as world:

            async def change(clusters: list[str]) -> None:
                world.clusters = sorted(clusters)
                for process in world.processes:
                    process.changed.set()
                await asyncio.sleep(30)

            begun = world.begun
            await change(CLUSTERS[1:])
            assert not world.working[CLUSTERS[0]]
            assert world.settled()
            if fence == "shard":
                assert world.begun == begun
            await change([*CLUSTERS, "new"])
            assert world.settled()

    for fence in ("shard", "cluster"):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(changing(fence))


def test_a_new_cluster_of_its_own_fence_is_begun_at_once(made_up_time: Loop) -> None:
    """There is no Lease of it, and there was none for as long as one lasts: nobody can be at work."""

    async def coming() -> None:
        async with world_of(0.0, fence="cluster") as world:
            world.clusters = [*CLUSTERS, "new"]
            world.processes[0].changed.set()
            await until(world.settled, within=1)

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(coming())


def test_sixty_four_fences_cost_seven_writes_a_second(made_up_time: Loop) -> None:
    async def measured() -> None:
        async with world_of(0.0, shards=64) as world:
            before = world.api.writes
            await asyncio.sleep(1000)
            assert 6.4 <= (world.api.writes - before) / 1000 <= 8

    with asyncio.Runner(loop_factory=made_up_time) as runner:
        runner.run(measured())
