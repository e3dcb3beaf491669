"""The watchdog ends components after their deadline, even if their supervisor is dead or suspended."""

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


async def test_late_component_is_ended_and_others_keep_running(
    sandbox, is_running, eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the watchdog would extend the deadline of `bounded` each second.
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
        # The reaper also ends each restarted process of the component.
        await eventually(lambda: runtime.state("late").restarts >= 2)
        assert runtime.state("late-not").pid == pids["late-not"]
        assert runtime.state("bounded").pid == pids["bounded"]
        until["late"] = 60.0
        await watchdog.confirm()
        await sandbox.phase(runtime, "late", Phase.READY)
        assert is_running(runtime.state("late").pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_dead_or_hanging_reaper_is_replaced(
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


async def test_reaper_scans_often_only_while_components_are_late(sandbox, eventually) -> None:
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("late", FOREVER))
        marker = f"{MARKER_VARIABLE}={sandbox.directory}/".encode()
        # A process has no environment for a moment during exec.
        await eventually(lambda: reaper._end_late({marker + b"late": 0.0}), lambda wait: wait == reaper._AGAIN_SECONDS)
    await eventually(lambda: reaper._end_late({marker + b"late": 0.0}), lambda wait: wait == reaper._LOOK_SECONDS)
    soon = time.clock_gettime(time.CLOCK_BOOTTIME) + 0.1
    assert reaper._end_late({marker + b"late": 0.0, marker + b"soon": soon}) <= 0.1


async def test_process_missed_by_a_scan_is_ended_by_the_next_scan(
    sandbox, is_running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process has no environment during exec, and the supervisor may die at that moment."""
    monkeypatch.setattr("kplane.workloads.processes.reaper._AGAIN_SECONDS", 0.01)
    kill, counts = reaper._kill, []

    def miss_once(markers: set[bytes], *, all_below: bool) -> int:
        counts.append(0 if not counts else kill(markers, all_below=all_below))
        return counts[-1]

    monkeypatch.setattr("kplane.workloads.processes.reaper._kill", miss_once)
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("missed", "exec sleep 1000"))
        pid = runtime.state("missed").pid
        reaper._end_all(f"{MARKER_VARIABLE}={sandbox.directory}/".encode())
        await sandbox.gone(pid)
    assert counts[-2:] == [0, 0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_reaper_ignores_signals_meant_for_the_supervisor(sandbox, number: signal.Signals) -> None:
    async with watched(sandbox, {}) as watchdog:
        pid = watchdog.pid
        os.kill(pid, number)
        await watchdog.confirm()
        assert watchdog.pid == pid


async def test_confirm_replaces_reaper_whose_exit_is_not_observed_yet(
    sandbox, eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipes of the reaper are closed by then, and uvloop raises RuntimeError for writes to closed pipes."""
    monkeypatch.setattr("kplane.workloads.processes.watchdog._TELL_SECONDS", 60.0)
    wait, exit_event, observation = asyncio.subprocess.Process.wait, asyncio.Event(), asyncio.Event()

    async def be_late(process: asyncio.subprocess.Process) -> int:
        code = await wait(process)
        exit_event.set()
        await observation.wait()
        return code

    monkeypatch.setattr("asyncio.subprocess.Process.wait", be_late)
    async with watched(sandbox, {}) as watchdog:
        former = watchdog.pid
        os.kill(former, signal.SIGKILL)
        await exit_event.wait()
        confirmation = asyncio.create_task(watchdog.confirm())
        await eventually(lambda: watchdog.pid is None)
        observation.set()
        await confirmation
        assert watchdog.pid not in {None, former}


async def test_start_of_reaper_is_retried_with_growing_delays(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.workloads.processes.watchdog._FIRST_PAUSE_SECONDS", 0.02)
    start, attempts = asyncio.create_subprocess_exec, []

    async def fail_at_first(*arguments, **options) -> asyncio.subprocess.Process:
        attempts.append(time.monotonic())
        if len(attempts) <= 5:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*arguments, **options)

    monkeypatch.setattr("asyncio.create_subprocess_exec", fail_at_first)
    async with watched(sandbox, {}) as watchdog:
        assert watchdog.pid is not None
    assert attempts[5] - attempts[0] > 0.5, "it waits longer each time"


async def test_failure_to_keep_a_reaper_is_reported(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kplane.workloads.processes.watchdog._SILENT_SECONDS", 0.2)
    monkeypatch.setattr("kplane.workloads.processes.watchdog._PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("kplane.workloads.processes.watchdog._FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr("kplane.workloads.processes.watchdog.sys.executable", "/bin/false")
    failure = asyncio.Event()
    watchdog = Watchdog(sandbox.directory, until=dict)

    async def watch() -> None:
        async with watchdog.running(on_failure=failure.set):
            await failure.wait()

    with pytest.raises(RuntimeFailure, match="No process can be had"):
        await watch()
    with pytest.raises(RuntimeFailure, match="no process that would end"):
        await watchdog.confirm()


@pytest.mark.asyncio(loop_factories=["asyncio"])  # the supervisor has its own event loop
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_components_end_if_supervisor_is_suspended_or_dead(
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
            # The component outlives its first deadline of 2 s, because the supervisor extends the deadline.
            await eventually(lambda: time.monotonic() - began > 2.1)
            assert is_running(pid)
        supervisor.send_signal(number)
        await sandbox.gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            supervisor.kill()
        await supervisor.communicate()
    await sandbox.gone(reaper)
