"""Components that outlast what allows them are ended, whatever has become of their supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kplane.embedded.python_path import python_path
from kplane.workloads import Phase, RuntimeFailure, Watchdog
from kplane.workloads.processes import reaper
from kplane.workloads.processes.proctable import MARKER_VARIABLE

FOREVER = "sleep 1000 & exec sleep 1000"
PROGRAM = Path(__file__).parent / "programs" / "watched_supervisor.py"


@contextlib.asynccontextmanager
async def watched(sandbox, until: dict[str, float]) -> AsyncIterator[Watchdog]:
    watchdog = Watchdog(sandbox.directory, until=lambda: until)
    async with watchdog.running(on_failure=lambda: None):
        await watchdog.confirm()
        yield watchdog


async def test_what_is_late_is_ended_with_all_its_processes_and_nothing_else(
    sandbox, is_running, eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else what is bounded would be told a later time each second.
    monkeypatch.setattr("kplane.workloads.processes.watchdog._TELL_SECONDS", 60.0)
    until = {"late": 60.0, "bounded": 60.0}
    async with sandbox.runtime() as runtime, watched(sandbox, until) as watchdog:
        for name in ("late", "late-not", "bounded"):
            await runtime.apply(sandbox.shell(name, FOREVER))
        pids = {name: runtime.state(name).pid for name in runtime.names()}
        assert is_running(pids["late"])
        until["late"] = 0.5
        began = time.monotonic()
        await watchdog.confirm()
        await sandbox.gone(pids["late"])
        assert time.monotonic() - began >= 0.45, "and no sooner"
        # And it is not let come up again.
        await eventually(lambda: runtime.state("late").restarts >= 2)
        assert runtime.state("late-not").pid == pids["late-not"]
        assert runtime.state("bounded").pid == pids["bounded"]
        until["late"] = 60.0
        await watchdog.confirm()
        await sandbox.phase(runtime, "late", Phase.READY)
        assert is_running(runtime.state("late").pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_reaper_that_dies_or_hangs_is_replaced(
    sandbox, eventually, is_running, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("kplane.workloads.processes.watchdog._SILENT_SECONDS", 0.5)
    until = {"plain": 60.0}
    async with sandbox.runtime() as runtime, watched(sandbox, until) as watchdog:
        await runtime.apply(sandbox.shell("plain", FOREVER))
        former, pid = watchdog.pid, runtime.state("plain").pid
        os.kill(former, number)
        await eventually(lambda: watchdog.pid not in {None, former})
        until["plain"] = 0.0
        await watchdog.confirm()
        await sandbox.gone(pid)
        assert not is_running(former)


async def test_what_is_late_is_looked_for_closely_only_while_there_is_any(sandbox, eventually) -> None:
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("late", FOREVER))
        marker = f"{MARKER_VARIABLE}={sandbox.directory}/".encode()
        # A process has no environment for a moment while it becomes another program.
        await eventually(lambda: reaper._end_late({marker + b"late": 0.0}), lambda wait: wait == reaper._AGAIN_SECONDS)
    await eventually(lambda: reaper._end_late({marker + b"late": 0.0}), lambda wait: wait == reaper._LOOK_SECONDS)
    soon = time.clock_gettime(time.CLOCK_BOOTTIME) + 0.1
    assert reaper._end_late({marker + b"late": 0.0, marker + b"soon": soon}) <= 0.1


async def test_what_one_look_misses_is_ended_by_the_next(sandbox, is_running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has no environment while it becomes another program, and the supervisor may die just then."""
    monkeypatch.setattr("kplane.workloads.processes.reaper._AGAIN_SECONDS", 0.01)
    kill, looks = reaper._kill, []

    def miss_once(markers: set[bytes], *, all_below: bool) -> int:
        looks.append(0 if not looks else kill(markers, all_below=all_below))
        return looks[-1]

    monkeypatch.setattr("kplane.workloads.processes.reaper._kill", miss_once)
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("missed", "exec sleep 1000"))
        pid = runtime.state("missed").pid
        reaper._end_all(f"{MARKER_VARIABLE}={sandbox.directory}/".encode())
        await sandbox.gone(pid)
    assert looks[-2:] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_that_is_meant_for_the_supervisor_ends_no_reaper(sandbox, number: signal.Signals) -> None:
    async with watched(sandbox, {}) as watchdog:
        pid = watchdog.pid
        os.kill(pid, number)
        await watchdog.confirm()
        assert watchdog.pid == pid


async def test_something_is_to_be_told_to_a_reaper_whose_end_is_not_known_yet(
    sandbox, eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pipes are closed by then, and uvloop says so by a RuntimeError to who writes all the same."""
    monkeypatch.setattr("kplane.workloads.processes.watchdog._TELL_SECONDS", 60.0)
    wait, ended, known = asyncio.subprocess.Process.wait, asyncio.Event(), asyncio.Event()

    async def be_late(process: asyncio.subprocess.Process) -> int:
        code = await wait(process)
        ended.set()
        await known.wait()
        return code

    monkeypatch.setattr("asyncio.subprocess.Process.wait", be_late)
    async with watched(sandbox, {}) as watchdog:
        former = watchdog.pid
        os.kill(former, signal.SIGKILL)
        await ended.wait()
        telling = asyncio.create_task(watchdog.confirm())
        await eventually(lambda: watchdog.pid is None)
        known.set()
        await telling
        assert watchdog.pid not in {None, former}


async def test_a_machine_without_room_for_a_process_is_given_time(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.workloads.processes.watchdog._FIRST_PAUSE_SECONDS", 0.02)
    start, tried_at = asyncio.create_subprocess_exec, []

    async def fail_at_first(*arguments, **options) -> asyncio.subprocess.Process:
        tried_at.append(time.monotonic())
        if len(tried_at) <= 5:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*arguments, **options)

    monkeypatch.setattr("asyncio.create_subprocess_exec", fail_at_first)
    async with watched(sandbox, {}) as watchdog:
        assert watchdog.pid is not None
    assert tried_at[5] - tried_at[0] > 0.5, "it waits longer each time"


async def test_where_no_reaper_can_be_kept_that_is_told(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.workloads.processes.watchdog._SILENT_SECONDS", 0.2)
    monkeypatch.setattr("kplane.workloads.processes.watchdog._PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("kplane.workloads.processes.watchdog._FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("kplane.workloads.processes.watchdog.sys.executable", "/bin/false")
    failed = asyncio.Event()
    watchdog = Watchdog(sandbox.directory, until=dict)

    async def watch() -> None:
        async with watchdog.running(on_failure=failed.set):
            await failed.wait()

    with pytest.raises(RuntimeFailure, match="No process can be had"):
        await watch()
    with pytest.raises(RuntimeFailure, match="no process that would end"):
        await watchdog.confirm()


@pytest.mark.asyncio(loop_factories=["asyncio"])  # the supervisor has one of its own
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_components_end_though_their_supervisor_is_stopped_or_dead(
    sandbox, is_running, eventually, number: signal.Signals
) -> None:
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, sandbox.directory),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    try:
        pid, reaper = map(int, (await supervisor.stdout.readline()).split())
        began = time.monotonic()
        if number is signal.SIGSTOP:
            # It goes on for longer than it may run without being allowed again.
            await eventually(lambda: time.monotonic() - began > 2.1)
            assert is_running(pid)
        supervisor.send_signal(number)
        await sandbox.gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            supervisor.kill()
        await supervisor.communicate()
    await sandbox.gone(reaper)
