"""Sharded coordinators in virtual time: with a slow or unreachable API server, and separate clocks."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

import pytest

from kplane.provider import ClusterConfig, Conflict, NotFound
from kplane.provider.client.client import ObjectList
from kplane.provider.client.limits import AnswerLimits
from kplane.provider.client.watch import WatchEvent
from kplane.provider.coordination.sharded import Sharded
from kplane.provider.coordination.shards import ShardTimings
from kplane.provider.errors import ClusterNotOwned, Invalid

EDITS: dict[str, dict[str, Any]] = {
    "free": {"holderIdentity": ""},
    "rename": {"holderIdentity": "somebody"},
    "shorten": {"leaseDurationSeconds": 1},
}


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

    def delete(self, name: str, uid: str | None = None, version: str | None = None) -> dict[str, Any]:
        found = self.get(name)
        if uid not in {None, found["metadata"]["uid"]}:
            raise Conflict(409, "Conflict", "it is another one")
        if version not in {None, found["metadata"]["resourceVersion"]}:
            raise Conflict(409, "Conflict", "it was changed")
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
    """The client of a process, on its wire to the server."""

    def __init__(self, api: Api, wire: Any) -> None:
        self.api, self.wire = api, wire
        self.config, self.limits, self.timeout_seconds = ClusterConfig("https://made.up"), AnswerLimits(), 30.0

    async def get(self, _: Any, name: str, *, namespace: str) -> dict[str, Any]:
        return await self.wire.call(lambda: self.api.get(name))

    async def replace(self, _: Any, body: dict[str, Any]) -> dict[str, Any]:
        return await self.wire.call(lambda: self.api.put(body))

    async def apply(self, _: Any, body: dict[str, Any], *, field_manager: str, force: bool) -> dict[str, Any]:
        return await self.wire.call(lambda: self.api.apply(body))

    async def delete(
        self, _: Any, name: str, *, namespace: str, uid: str | None, resource_version: str | None = None
    ) -> dict[str, Any]:
        return await self.wire.call(lambda: self.api.delete(name, uid, resource_version))

    async def list(self, _: Any, **__: Any) -> ObjectList:
        def items() -> Any:
            return ObjectList(copy.deepcopy(list(self.api.leases.values())), str(len(self.api.log)))

        return await self.wire.call(items)

    async def collect(self, pages: Callable[[], Any], resource: Any, **options: Any) -> Any:
        found, listing = await self.list(resource, **options), pages()
        body = {"metadata": {"resourceVersion": found.resource_version}, "items": found.items}
        with self.limits.intake(server=self.config.server) as intake:
            listing.add(json.dumps(body).encode(), intake=intake)
        return listing

    def watch(self, _: Any, *, resource_version: str | None, **__: Any) -> Stream:
        return Stream(self, None if resource_version is None else int(resource_version))


class Stream:
    """A watch. It delivers missed events after a cut of the network."""

    def __init__(self, link: Link, position: int | None) -> None:
        self._link = link
        self._position = position if position is not None else 0
        self._refused = position is None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def open(self) -> None:
        if self._refused:
            raise Invalid(422, "Invalid", "this server streams no lists")
        await asyncio.sleep(self._link.wire.delay())

    async def read(self) -> list[bytes]:
        log, wire = self._link.api.log, self._link.wire
        while wire.cut or wire.deaf or self._position >= len(log):
            if self._position >= len(log):
                await self._link.api.wait()
            else:
                await asyncio.sleep(0.1)
        await asyncio.sleep(self._link.wire.delay())
        self._position += 1
        event = log[self._position - 1][1]
        return [json.dumps({"type": event.type, "object": event.object}).encode()]


class World:
    """The processes, the clusters, and the processes that work on each cluster."""

    shards = 8
    timings = ShardTimings()

    def __init__(self, new_wire: Callable[..., Any]) -> None:
        self.api = Api()
        self._new_wire = new_wire
        self.clusters = sorted(f"cluster-{number}" for number in range(12))
        self.begun = 0
        self.working: defaultdict[str, set[str]] = defaultdict(set)
        self.together: list[tuple[str, set[str]]] = []
        self.processes: list[Process] = []

    def new_link(self) -> Link:
        """Return a connection of a process to the server."""
        return Link(self.api, self._new_wire(patience_seconds=30.0))

    def join(self, *, drift: float = 0.0, **options: Any) -> Process:
        """Start another process."""
        return Process(len(self.processes), self, drift=drift, **options).start()

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
        """Return the number of fences behind which each process works."""
        return [process.coordinator.stats.owned for process in self.processes if process.running]

    def settled(self) -> bool:
        return all(len(self.working[cluster]) == 1 for cluster in self.clusters)

    async def until(self, condition: Callable[[], bool], *, within: float) -> None:
        """Wait until the condition is true, in virtual time."""
        began = asyncio.get_running_loop().time()
        while not condition():
            assert asyncio.get_running_loop().time() - began < within, f"not within {within} s"
            await asyncio.sleep(0.05)

    async def watch_writers(self) -> None:
        """Check all the time that no two processes may write."""
        while True:
            for cluster in self.clusters:
                allowed = {process.name for process in self.processes if process.running and process.may_write(cluster)}
                if len(allowed) > 1:
                    self.together.append((cluster, allowed))
            await asyncio.sleep(0.2)


class Process:
    """A replica with its workplace, its client and its clock."""

    def __init__(self, number: int, world: World, *, drift: float = 0.0, **options: Any) -> None:
        self.number, self.world = number, world
        self.rate, self.offset = 1.0 + drift, number * 1000.0
        self.options = {"shards": world.shards} | options
        self.link = world.new_link()
        self.slow_end = 0.0
        self.failing = ""
        """A cluster whose work fails to begin."""
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
        """Stop the process, as SIGTERM does."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait((self.task,))
            self.running = False

    def kill(self) -> None:
        """Act as SIGKILL: the process has no effect from now on, and restarts under the same name."""
        self.link.wire.cut = True
        self.running = False
        for working in self.world.working.values():
            working.discard(self.name)
        if self.task is not None:
            self.task.cancel()
        self.link = self.world.new_link()

    def mend(self) -> None:
        wire = self.link.wire
        wire.cut = wire.deaf = False
        wire.slowness, self.slow_end = 0.02, 0.0
        self.start()

    async def meet(self, what: str) -> None:
        """Inject a fault, or repair all faults."""
        match what:
            case "stop":
                await self.stop()
            case "kill":
                self.kill()
            case "cut" | "deaf":
                setattr(self.link.wire, what, True)
            case "slow":
                self.link.wire.slowness = 3.0
            case "slow end":
                self.slow_end = 100.0
            case "mend":
                self.mend()
            case _:
                self._edit(what)

    def _edit(self, what: str) -> None:
        """Edit Leases as a user would."""
        api = self.world.api
        for name in [name for name, holder in self.world.holders().items() if holder == self.identity]:
            if what == "delete":
                api.delete(name)
            else:
                api.edit(name, **EDITS[what])
        if what == "delete" and self.announced in api.leases:
            api.delete(self.announced)


class Place:
    """The workplace of a process, on which its coordinator allows and withdraws clusters."""

    def __init__(self, process: Process, coordinator: Sharded) -> None:
        self._process, self._coordinator, self._name = process, coordinator, process.name
        process.changed.set()

    def names(self) -> list[str]:
        return self._process.world.clusters

    async def wait_changed(self) -> None:
        await self._process.changed.wait()
        self._process.changed.clear()

    def allow(self, name: str) -> None:
        if name == self._process.failing:
            raise RuntimeError("it cannot begin")
        if self._process.name == self._name and self._process.running:
            assert self._coordinator.may_work(name)
            self._process.world.begin(name, self._name)

    def observe_local(self) -> None:
        self._process.observing = True

    async def ignore_local(self) -> None:
        self._process.observing = False

    async def withdraw(self, name: str) -> None:
        fence = self._coordinator._fences.of(name)
        assert fence is not None
        working, now = self._process.world.working[name], self._process.now
        slow_until = now() + self._process.slow_end
        while now() < slow_until:
            await asyncio.sleep(0.05)
            if now() >= fence.overrun_at:
                # The process has ended. In this test its work stays, and must not be able to write.
                working.discard(self._name)
        working.discard(self._name)


@pytest.fixture(scope="session")
def world_of(new_wire: Callable[..., Any]) -> Callable[..., AbstractAsyncContextManager[World]]:
    """`async with world_of(drift, …, **options) as world`, with a process for each drift of a clock.

    The processes have already divided the clusters. At exit, no two processes have worked on a cluster together.
    """

    @contextlib.asynccontextmanager
    async def make(*drifts: float, **options: Any) -> AsyncIterator[World]:
        world = World(new_wire)
        for drift in drifts:
            world.join(drift=drift, **options)
        watching = asyncio.create_task(world.watch_writers())
        timings = options.get("timings", world.timings)
        await asyncio.sleep(60 + timings.duration_seconds - world.timings.duration_seconds)
        assert world.settled() or not drifts
        yield world
        watching.cancel()
        await asyncio.wait([watching])
        await asyncio.gather(*(process.stop() for process in world.processes))
        assert world.together == []
        assert set().union(*world.working.values()) == set()

    return make
