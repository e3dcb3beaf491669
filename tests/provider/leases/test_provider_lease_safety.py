"""Safety of a Lease under faults of processes, clocks and network: two processes never work together.

Elections run in virtual time, against an API server that is slow or unreachable, or whose responses are lost. Each
process has its own clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kplane.provider import Conflict, Election, Lease, NotFound
from kplane.provider.coordination.lease import LeaseTimings
from kplane.provider.errors import Invalid, LeaseLost

TIMINGS = LeaseTimings()
Wires = Callable[..., Any]
CALL_SECONDS = 3.5
SETTLED_SECONDS = 3 * TIMINGS.duration_seconds
DRIFT = 0.01
"""Clocks of computers drift by less than a ten-thousandth."""


@dataclass
class Server:
    """Stores a Lease, as the API server does."""

    lease: dict[str, Any] | None = None
    versions: Any = field(default_factory=lambda: itertools.count(1))

    def get(self) -> dict[str, Any]:
        if self.lease is None:
            raise NotFound(404, "NotFound", "there is none")
        return copy.deepcopy(self.lease)

    def put(self, body: dict[str, Any]) -> dict[str, Any]:
        metadata = body["metadata"]
        if self.lease is None and "uid" in metadata:
            raise Conflict(409, "Conflict", "it is gone")
        if self.lease is not None:
            if "resourceVersion" not in metadata:
                raise Invalid(422, "Invalid", "must be specified for an update")
            if metadata["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
                raise Conflict(409, "Conflict", "it was changed")
        uid = self.lease["metadata"]["uid"] if self.lease else f"uid-{next(self.versions)}"
        self.lease = copy.deepcopy(body)
        self.lease["metadata"] |= {"uid": uid, "resourceVersion": str(next(self.versions))}
        return self.get()

    def edit(self, **spec: Any) -> None:
        if self.lease is not None:
            self.put({**self.get(), "spec": self.lease["spec"] | spec})

    def annotate(self) -> None:
        if self.lease is not None:
            found = self.get()
            found["metadata"]["annotations"] = {"by": "somebody"}
            self.put(found)


@dataclass
class Link:
    """The client of a process, on its wire to the server."""

    server: Server
    wire: Any

    async def get(self, _: Any, __: str, *, namespace: str) -> dict[str, Any]:
        return await self._call(self.server.get)

    async def replace(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call(lambda: self.server.put(body))

    async def _call(self, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        answer: dict[str, Any] = await self.wire.call(act)
        return answer


@dataclass
class World:
    """Candidates for the Lease, and the processes at work."""

    server: Server
    new_wire: Wires
    working: set[str] = field(default_factory=set)
    worked: list[str] = field(default_factory=list)
    together: list[set[str]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    def link(self, chance: random.Random) -> Link:
        return Link(self.server, self.new_wire(patience_seconds=CALL_SECONDS, uniform=chance.uniform))

    def begin(self, name: str) -> None:
        self.working.add(name)
        self.worked.append(name)
        self.begun.set()
        if len(self.working) > 1:
            self.together.append(set(self.working))


class Process:
    """A candidate, which is restarted after its end like a container."""

    def __init__(self, number: int, world: World, *, chance: random.Random, drift: float, remembers: bool) -> None:
        self.number = number
        self.world = world
        self.remembers = remembers
        """If true, the same process repeats its election after it lost the Lease. If false, a new process starts."""
        self.link = world.link(chance)
        self.runs = itertools.count()
        self.slow_end = 0.0
        self._task: asyncio.Task[None] | None = None
        self._rate = 1.0 + drift
        self._offset = number * 1000.0

    def now(self) -> float:
        return asyncio.get_running_loop().time() * self._rate + self._offset

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        lease: Lease | None = None
        while True:
            if lease is None or not self.remembers:
                name = f"process-{self.number}-{next(self.runs)}"
                lease = Lease(self.link, namespace="ns", name="lease", identity=name, strict=True, now=self.now)  # type: ignore[arg-type]
            self.election = Election(lease, on_overrun=None, now=self.now)
            with contextlib.suppress(LeaseLost):
                await self.election.run(self._work(name, lease))
            await asyncio.sleep(1.0)

    def _work(self, name: str, lease: Lease) -> Callable[[], Coroutine[Any, Any, None]]:
        async def work() -> None:
            self.world.begin(name)
            try:
                await asyncio.sleep(3600)
            finally:
                try:
                    # The thread ends the process before the Lease expires.
                    await asyncio.sleep(max(0.0, min(self.slow_end, lease.expires_at - self.now() - 0.5)))
                finally:
                    self.world.working.discard(name)

        return work

    async def stop(self) -> None:
        """Stop the process, as SIGTERM does."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    def kill(self) -> None:
        """Act as SIGKILL: the process has no effect from now on."""
        if self._task is not None:
            nowhere = self.world.link(random.Random(0))
            nowhere.wire.cut = True
            before, self.link = self.link, nowhere
            self.election.lease._client = nowhere  # type: ignore[assignment]
            self._task.cancel()
            self.world.working = {name for name in self.world.working if not name.startswith(f"process-{self.number}-")}
            self.link = before


PROCESSES = 3
FAULTS = ["stop", "kill", "cut", "deaf", "slow", "slow end", "mend", "delete", "free", "rename", "shorten", "annotate"]
EVENTS = st.lists(
    st.tuples(st.floats(0.1, 12.0), st.sampled_from(FAULTS), st.integers(0, PROCESSES - 1)), min_size=1, max_size=14
)


async def happen(what: str, process: Process, server: Server) -> None:
    """Inject a fault, or repair all faults."""
    wire = process.link.wire
    match what:
        case "stop":
            await process.stop()
        case "kill":
            process.kill()
        case "cut":
            wire.cut = True
        case "deaf":
            wire.deaf = True
        case "slow":
            wire.slowness = 3.0
        case "slow end":
            process.slow_end = 20.0
        case "mend":
            mend(process)
        case _:
            edit(what, process, server)


def edit(what: str, process: Process, server: Server) -> None:
    """Edit the Lease as a user would."""
    match what:
        case "delete":
            server.lease = None
        case "free":
            server.edit(holderIdentity="")
        case "rename":
            server.edit(holderIdentity=f"process-{process.number}-0")
        case "shorten":
            server.edit(leaseDurationSeconds=1)
        case "annotate":
            server.annotate()


def mend(process: Process) -> None:
    wire = process.link.wire
    wire.cut = wire.deaf = False
    wire.slowness, process.slow_end = 0.02, 0.0
    process.start()


async def story(
    new_wire: Wires,
    events: list[tuple[float, str, int]],
    *,
    drifts: list[float],
    seed: int,
    blank: bool,
    remembers: bool = False,
) -> World:
    server = Server()
    if blank:
        server.put({"metadata": {"namespace": "ns", "name": "lease"}, "spec": {}})
    world = World(server, new_wire)
    chance = random.Random(seed)
    processes = [
        Process(number, world, chance=chance, drift=drift, remembers=remembers) for number, drift in enumerate(drifts)
    ]
    for process in processes:
        process.start()
    for seconds, what, number in events:
        await asyncio.sleep(seconds)
        await happen(what, processes[number], server)
    for process in processes:
        mend(process)
    await asyncio.sleep(SETTLED_SECONDS)
    assert len(world.working) == 1, "nobody works although all is well"
    await asyncio.gather(*(process.stop() for process in processes))
    return world


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=EVENTS,
    drifts=st.lists(st.floats(-DRIFT, DRIFT), min_size=PROCESSES, max_size=PROCESSES),
    seed=st.integers(0, 1000),
    blank=st.booleans(),
    remembers=st.booleans(),
)
def test_processes_never_work_at_the_same_time(
    made_up_time: type[asyncio.AbstractEventLoop],
    new_wire: Wires,
    events: list[tuple[float, str, int]],
    drifts: list[float],
    seed: int,
    blank: bool,
    remembers: bool,
) -> None:
    with asyncio.Runner(loop_factory=made_up_time) as runner:
        scenario = story(new_wire, events, drifts=drifts, seed=seed, blank=blank, remembers=remembers)
        world = runner.run(scenario)
    assert world.together == []
    assert world.working == set()


@pytest.mark.parametrize("seconds", [1.0, 3.0, 7.6])
def test_stop_during_the_end_of_work_prevents_a_new_election(
    made_up_time: type[asyncio.AbstractEventLoop], new_wire: Wires, seconds: float
) -> None:
    """The Lease is lost, and the work ends slowly: the stopped process must not start another election."""
    for seed in range(6):
        events = [(11.5, "slow end", 0), (9.3 + seed * 0.3, "deaf", 0), (7.0, "annotate", 1), (seconds, "stop", 0)]
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            world = runner.run(story(new_wire, events, drifts=[0.0] * PROCESSES, seed=seed, blank=True))
        assert world.together == []


@pytest.mark.parametrize("fault", FAULTS)
def test_processes_survive_each_single_fault(
    made_up_time: type[asyncio.AbstractEventLoop], new_wire: Wires, fault: str
) -> None:
    """The fault hits each process, at several moments between two renewals."""
    for number, moment in itertools.product(range(PROCESSES), range(6)):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            events = [(12.0 + moment * 0.3, fault, number), (20.0, "mend", number)]
            world = runner.run(story(new_wire, events, drifts=[0.0] * PROCESSES, seed=moment, blank=True))
        assert world.together == []


@asynccontextmanager
async def holder_and_next(new_wire: Wires, seed: int) -> AsyncIterator[tuple[Process, Process]]:
    """Yield the holder and a waiting process, at some moment between two renewals."""
    server = Server()
    server.put({"metadata": {"namespace": "ns", "name": "lease"}, "spec": {}})
    world, chance = World(server, new_wire), random.Random(seed)
    first, second = (
        Process(number, world, chance=chance, drift=drift, remembers=False)
        for number, drift in enumerate((-DRIFT, DRIFT))
    )
    first.start()
    await asyncio.sleep(1.0)
    second.start()
    await asyncio.sleep(20.0 + seed * 0.1)
    assert world.worked == ["process-0-0"]
    world.begun.clear()
    yield first, second
    await asyncio.gather(first.stop(), second.stop())
    assert world.together == []


@pytest.mark.parametrize("meanwhile", ["slow", "shorten", "delete", "free", "annotate"])
def test_isolated_holder_stops_before_the_next_begins(
    made_up_time: type[asyncio.AbstractEventLoop], new_wire: Wires, meanwhile: str
) -> None:
    """The holder stops in time even if its work ends slowly, its last response was late, or other faults occur."""

    async def cut_off(seed: int) -> None:
        async with holder_and_next(new_wire, seed) as (first, second):
            first.slow_end = 20.0
            await happen(meanwhile, first, first.world.server)
            await asyncio.sleep(seed % 7)
            first.link.wire.cut = True
            await happen("delete" if meanwhile == "delete" else "annotate", first, first.world.server)
            await second.world.begun.wait()

    for seed in range(50):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            runner.run(cut_off(seed))


def test_killed_holder_is_replaced_in_time(made_up_time: type[asyncio.AbstractEventLoop], new_wire: Wires) -> None:
    """The replacement depends on neither of the two clocks."""

    async def killed(seed: int) -> float:
        async with holder_and_next(new_wire, seed) as (first, second):
            first.kill()
            at = asyncio.get_running_loop().time()
            await second.world.begun.wait()
            return asyncio.get_running_loop().time() - at

    for seed in range(40):
        with asyncio.Runner(loop_factory=made_up_time) as runner:
            assert runner.run(killed(seed)) < 13.0


async def test_process_with_endless_work_is_ended(new_wire: Wires) -> None:
    """The end runs in a thread, because the event loop of such a process may be blocked."""
    server = Server()
    link = World(server, new_wire).link(random.Random(0))
    timings = LeaseTimings(duration_seconds=1, renew_deadline_seconds=0.3, retry_seconds=0.1)
    server.put({"metadata": {"namespace": "ns", "name": "lease"}, "spec": {}})
    lease = Lease(link, namespace="ns", name="lease", identity="it", timings=timings)  # type: ignore[arg-type]
    held: list[bool] = []
    ended = threading.Event()

    def end() -> None:
        held.append(lease.held)
        ended.set()

    async def stubborn() -> None:
        link.wire.cut = True
        ended.wait(60.0)  # blocks the event loop

    with contextlib.suppress(LeaseLost):
        await Election(lease, on_overrun=end).run(stubborn)
    assert held == [True]
