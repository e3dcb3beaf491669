"""Components that outlast what allows them are ended, whatever has become of their supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import workloads
from workloads import Phase, RuntimeFailure, Watchdog

FOREVER = "sleep 1000 & exec sleep 1000"
PROGRAM = Path(__file__).parent / "programs" / "watched_supervisor.py"


@contextlib.asynccontextmanager
async def watched(sandbox, until: dict[str, float]) -> AsyncIterator[Watchdog]:
    watchdog = Watchdog(sandbox.directory, until=lambda: until)
    async with watchdog.running(on_failure=lambda: None):
        await watchdog.tell()
        yield watchdog


async def test_what_is_late_is_ended_with_all_its_processes_and_nothing_else(sandbox, is_running, eventually) -> None:
    until = {"late": 60.0, "bounded": 60.0}
    async with sandbox.runtime() as runtime, watched(sandbox, until) as watchdog:
        for name in ("late", "late-not", "bounded"):
            await runtime.apply(sandbox.shell(name, FOREVER))
        pids = {name: runtime.state(name).pid for name in runtime.names()}
        until["late"] = 0.3
        await watchdog.tell()
        assert is_running(pids["late"])
        await sandbox.gone(pids["late"])
        # And it is not let come up again.
        await eventually(lambda: runtime.state("late").restarts >= 2)
        assert runtime.state("late-not").pid == pids["late-not"]
        assert runtime.state("bounded").pid == pids["bounded"]
        until["late"] = 60.0
        await watchdog.tell()
        await sandbox.phase(runtime, "late", Phase.READY)
        assert is_running(runtime.state("late").pid)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_reaper_that_dies_or_hangs_is_replaced(
    sandbox, eventually, is_running, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("workloads.watchdog._SILENT_SECONDS", 1.0)
    until = {"plain": 60.0}
    async with sandbox.runtime() as runtime, watched(sandbox, until) as watchdog:
        await runtime.apply(sandbox.shell("plain", FOREVER))
        former, pid = watchdog.pid, runtime.state("plain").pid
        os.kill(former, number)
        await eventually(lambda: watchdog.pid not in {None, former})
        until["plain"] = 0.0
        await watchdog.tell()
        await sandbox.gone(pid)
        assert not is_running(former)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_that_is_meant_for_the_supervisor_ends_no_reaper(sandbox, number: signal.Signals) -> None:
    async with watched(sandbox, {}) as watchdog:
        pid = watchdog.pid
        os.kill(pid, number)
        await watchdog.tell()
        assert watchdog.pid == pid


async def test_where_no_reaper_can_be_kept_that_is_told(sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workloads.watchdog._SILENT_SECONDS", 0.2)
    monkeypatch.setattr("workloads.watchdog.sys.executable", "/bin/false")
    failed = asyncio.Event()
    watchdog = Watchdog(sandbox.directory, until=dict)

    async def watch() -> None:
        async with watchdog.running(on_failure=failed.set):
            await failed.wait()

    with pytest.raises(RuntimeFailure, match="No process can be had"):
        await watch()
    with pytest.raises(RuntimeFailure, match="no process that would end"):
        await watchdog.tell()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
async def test_components_end_though_their_supervisor_is_stopped_or_dead(
    sandbox, is_running, eventually, number: signal.Signals
) -> None:
    supervisor = await asyncio.create_subprocess_exec(
        *(sys.executable, PROGRAM, sandbox.directory),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(workloads.__file__).parents[1])},
    )
    try:
        pid, reaper = map(int, (await supervisor.stdout.readline()).split())
        began = time.monotonic()
        if number is signal.SIGSTOP:
            # It goes on for longer than it may run without being allowed again.
            await eventually(lambda: time.monotonic() - began > 3.5)
            assert is_running(pid)
        supervisor.send_signal(number)
        await sandbox.gone(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            supervisor.kill()
        await supervisor.communicate()
    await sandbox.gone(reaper)
