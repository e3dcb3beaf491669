"""Starts and restarts wait for their turn and then use the latest description. The program is a script that waits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.mcm.describe.controllers import component_name
from kplane.mcm.fleet import Instances
from kplane.mcm.instance.lifecycle import Instance
from kplane.mcm.instance.turns import StartBudget
from kplane.mcm.reasons import Reason
from kplane.mcm.status.observer import NullReporter
from kplane.provider import Cluster, ClusterConfig
from kplane.provider.fleet.clusters import Clusters
from kplane.workloads import Phase, ProcessRuntime, ProgramFailed, run_program
from kplane.workloads.processes.process import Process

from .instances_world import program

Eventually = Callable[..., Any]


class World:
    """One cluster, and a budget of one turn at a time, which tests can take."""

    def __init__(self, directory: Path, runtime: ProcessRuntime) -> None:
        self._files = directory / "state" / component_name("a") / "files"
        self.runtime = runtime
        self.budget = StartBudget(at_once=1, longest_seconds=0.05, stagger_seconds=0.0)
        self.instances = Instances(runtime, observer=NullReporter(registration=None), budget=self.budget)
        self.clusters = Clusters(awares=[self.instances], retry_initial_seconds=0.1)
        self.pids: list[int] = []
        """Pids of all processes so far."""
        runtime.subscribe(self._note)

    def _note(self, name: str) -> None:
        pid = self.runtime.state(name).pid
        if pid is not None and pid not in self.pids:
            self.pids.append(pid)

    async def put(self, *, token: str = "t", key: bytes = b"key") -> None:
        config = ClusterConfig(server="https://127.0.0.1:1", token=token)
        await self.clusters.add_or_replace(Cluster("a", config=config, credentials={"sa.key": key}))

    @property
    def instance(self) -> Instance:
        return self.instances.groups["a"][0]

    def awaited(self) -> bool:
        """Return whether an instance waits for a turn."""
        return self.budget._door.locked()

    def file(self, name: str) -> bytes:
        return (self._files / name).read_bytes()


@pytest.fixture
async def world(runtime: ProcessRuntime, tmp_path: Path) -> AsyncIterator[World]:
    program(tmp_path)
    world = World(tmp_path, runtime)
    try:
        yield world
    finally:
        await world.clusters.aclose()


async def test_instance_starts_with_credentials_renewed_during_its_wait(world: World, eventually: Eventually) -> None:
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.put(token="old")
        await eventually(world.awaited)
        await world.put(token="new")
        await eventually(world.instance._followed.is_set)
        over.set()
    await eventually(lambda: world.pids)
    assert world.file("token") == b"new"


async def test_restart_for_a_changed_description_waits_for_its_turn(world: World, eventually: Eventually) -> None:
    await world.put()
    await eventually(lambda: world.instance.running)
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.put(key=b"other")
        await eventually(world.awaited)
        await world.put(key=b"last")
        assert len(world.pids) == 1
        over.set()
    await eventually(lambda: len(world.pids) == 2)
    assert world.file("sa.key") == b"last"


async def test_restart_after_a_crash_waits_for_its_turn(world: World, eventually: Eventually) -> None:
    await world.put()
    await eventually(lambda: world.instance.running)
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        os.kill(world.pids[0], signal.SIGKILL)
        await eventually(world.awaited)
        assert (world.instance.process.phase, len(world.pids)) == (Phase.BACKOFF, 1)
        over.set()
    await eventually(lambda: len(world.pids) == 2)


async def test_turn_of_a_restart_ends_with_the_restart(
    world: World, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "exit 3")
    await world.put()
    await eventually(lambda: world.pids)
    monkeypatch.setattr(world.budget, "_longest_seconds", 3600.0)
    await eventually(lambda: len(world.pids) > 2)


async def test_instance_that_waits_to_restart_can_be_stopped(world: World, eventually: Eventually) -> None:
    await world.put()
    await eventually(lambda: world.instance.running)
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        os.kill(world.pids[0], signal.SIGKILL)
        await eventually(world.awaited)
        await world.clusters.remove("a")
        assert not world.awaited()
        over.set()
    assert len(world.pids) == 1


async def test_reloaded_file_is_written_without_a_turn(world: World, eventually: Eventually) -> None:
    await world.put()
    await eventually(lambda: world.instance.running)
    over = asyncio.Event()
    async with world.budget.turn(over=over):
        await world.put(token="new")
        await eventually(lambda: world.file("token") == b"new")
        over.set()
    assert len(world.pids) == 1


async def test_instance_ended_for_its_memory_releases_its_turn(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.budget, "_longest_seconds", 3600.0)
    await world.put()
    await eventually(lambda: world.instance.running)
    world.instance.end_above(world.pids[0], taken_bytes=2 << 20, limit_bytes=1 << 20)
    over = asyncio.Event()
    over.set()
    async with asyncio.timeout(10.0), world.budget.turn(over=over):
        pass


async def test_pid_of_a_reaped_process_is_not_killed(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader_ended, kill = Process._leader_ended, os.kill
    signals: list[Any] = []

    def end_and_be_killed(process: Process) -> None:
        leader_ended(process)  # the process is reaped, but the runtime has not reported it yet
        assert world.instance.process.pid == process.pid
        world.instance.end_above(process.pid, taken_bytes=2 << 20, limit_bytes=1 << 20)

    monkeypatch.setattr(Process, "_leader_ended", end_and_be_killed)
    await world.put()
    await eventually(lambda: world.pids)
    monkeypatch.setattr(os, "kill", lambda *of: signals.append(of))
    kill(world.pids[0], signal.SIGKILL)
    await eventually(lambda: world.instance.exits)
    monkeypatch.setattr(Process, "_leader_ended", leader_ended)
    assert (signals, world.instance.exits) == ([], {Reason.KILLED: 1})


async def test_failed_start_is_reported_and_retried(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("an error of ours")

    monkeypatch.setattr(world.runtime, "apply", fail)
    await world.put()
    await eventually(lambda: world.instance.reason is Reason.CANNOT_START)
    assert world.instance.message == "an error of ours"
    world.instance._followed.set()  # otherwise the retry comes in ten seconds
    await eventually(lambda: len(world.pids) == 1)


async def test_start_is_retried_after_an_os_error(
    world: World, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    over, failure = asyncio.Event(), asyncio.Event()

    async def fail(*_: Any, **__: Any) -> None:
        monkeypatch.undo()
        failure.set()
        raise OSError(23, "Too many open files in system")

    async with world.budget.turn(over=over):
        await world.put()
        await eventually(world.awaited)
        monkeypatch.setattr(world.runtime, "reserve", fail)
        over.set()
    await failure.wait()
    await eventually(lambda: world.pids)
    assert world.instance.reason is Reason.STARTING


async def test_run_program_fails_without_a_free_file_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.memfd_create", refuse)
    with pytest.raises(ProgramFailed, match="Too many open files"):
        await run_program(Path("/bin/true"), [], timeout_seconds=1.0)
