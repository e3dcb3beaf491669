"""What follows when a component ends by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from kplane.workloads import File, Pace, Phase, RestartPolicy, RuntimeFailure, find_processes
from kplane.workloads.processes.supervision import RestartBackoff

FOREVER = "exec sleep 1000"


async def test_a_killed_component_is_started_again(runtime, sandbox) -> None:
    await runtime.apply(await sandbox.web(runtime, "web"))
    first = await sandbox.phase(runtime, "web", Phase.READY)
    os.kill(first.pid, signal.SIGKILL)
    second = await sandbox.phase(runtime, "web", Phase.READY, restarts=1)
    assert second.pid != first.pid
    assert second.exit_code == -signal.SIGKILL


async def test_backoff_says_why_and_what_was_logged(sandbox, caplog) -> None:
    async with sandbox.runtime(pace=Pace(restart_base=1000.0, restart_limit=1000.0)) as runtime:
        script = "for i in $(seq 100); do echo line $i; done; echo cannot bind >&2; exit 7"
        await runtime.apply(sandbox.shell("crash", script))
        state = await sandbox.phase(runtime, "crash", Phase.BACKOFF)
        assert (state.exit_code, state.pid) == (7, None)
        first, *rest = state.message.splitlines()
        assert first.startswith("ended with exit code 7 after")
        assert rest[:-1] == [*(f"line {i}" for i in range(82, 101)), "cannot bind"]
        assert rest[-1].startswith("next start in ")
        assert "Component crash ended with exit code 7" in caplog.text
        await runtime.stop("crash")
        assert runtime.state("crash").phase is Phase.ABSENT


async def test_backoff_has_the_fatal_line_before_a_long_backtrace(sandbox) -> None:
    async with sandbox.runtime(pace=Pace(restart_base=1000.0, restart_limit=1000.0)) as runtime:
        script = "echo '[1][critical][assert] inotify_fd_ >= 0'; for i in $(seq 100); do echo frame $i; done; exit 7"
        await runtime.apply(sandbox.shell("crash", script))
        state = await sandbox.phase(runtime, "crash", Phase.BACKOFF)
        assert "; its last fatal line is: [1][critical][assert] inotify_fd_ >= 0; the end of its log" in state.message


async def test_an_equal_description_does_not_cut_the_backoff_short(sandbox) -> None:
    async with sandbox.runtime(pace=Pace(restart_base=1000.0, restart_limit=1000.0)) as runtime:
        component = sandbox.shell("crash", "exit 1")
        await runtime.apply(component)
        await sandbox.phase(runtime, "crash", Phase.BACKOFF)
        await runtime.apply(replace(component, grace_seconds=1.0))
        assert runtime.state("crash").phase is Phase.BACKOFF
        await runtime.apply(replace(component, args=("-c", FOREVER)))
        await sandbox.phase(runtime, "crash", Phase.READY)


async def test_the_tail_is_of_the_last_run_only(sandbox, runtime) -> None:
    script = "if [ -e data/ran ]; then exit 4; fi; touch data/ran; echo first run; exit 3"
    await runtime.apply(sandbox.shell("crash", script, data=True))
    state = await sandbox.phase(runtime, "crash", Phase.BACKOFF, exit_code=4)
    assert "first run" not in state.message


async def test_never_means_ended_until_described_differently(runtime, sandbox) -> None:
    component = sandbox.shell("once", "echo x >> data/runs; exit 5", data=True, restart=RestartPolicy.NEVER)
    await runtime.apply(component)
    ended = await sandbox.phase(runtime, "once", Phase.ENDED)
    assert (ended.exit_code, ended.restarts, ended.pid) == (5, 0, None)
    await runtime.apply(component)
    assert runtime.state("once") == ended
    await runtime.stop("once")
    await runtime.apply(component)
    await sandbox.phase(runtime, "once", Phase.ENDED)
    assert (sandbox.directory / "once/data/runs").read_text() == "x\nx\n"


async def test_a_program_that_vanished_is_waited_for(runtime, sandbox, tmp_path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    await runtime.apply(replace(sandbox.shell("gone", ""), program=str(program)))
    pid = runtime.state("gone").pid
    # Until then the shell has not read what it is to do.
    await sandbox._eventually(Path(f"/proc/{pid}/cmdline").read_text, lambda text: text.startswith("sleep"))
    content = program.read_text()
    program.unlink()
    os.kill(pid, signal.SIGKILL)
    state = await sandbox.phase(runtime, "gone", Phase.BACKOFF, pid=None)
    await sandbox._eventually(lambda: runtime.state("gone").message, lambda text: "cannot be started" in text)
    assert state.exit_code == -signal.SIGKILL
    new = tmp_path / "new"
    new.write_text(content)
    new.chmod(0o755)
    new.rename(program)
    await sandbox.phase(runtime, "gone", Phase.READY)


async def test_a_change_of_a_reloaded_file_is_there_after_a_restart(runtime, sandbox) -> None:
    component = sandbox.shell("reader", "cat files/f >> data/seen; exec sleep 1000", data=True)
    await runtime.apply(replace(component, files={"f": File(b"1", reloaded=True)}))
    pid = runtime.state("reader").pid
    seen = sandbox.directory / "reader/data/seen"
    await sandbox.text(seen)
    await runtime.apply(replace(component, files={"f": File(b"2", reloaded=True)}))
    assert runtime.state("reader").pid == pid
    os.kill(pid, signal.SIGKILL)
    await sandbox.text(seen, lambda text: text == "12")


async def test_no_such_program_is_refused_and_leaves_nothing(runtime, sandbox) -> None:
    with pytest.raises(
        RuntimeFailure, match=r"Component x: there is no executable program 'nope'; looked for: /bin/nope"
    ):
        await runtime.apply(replace(sandbox.shell("x", ""), program="nope"))
    assert runtime.names() == []
    assert find_processes(sandbox.directory) == []


async def test_a_restart_waits_until_it_is_admitted_and_tells_how_often_it_failed(runtime, sandbox, eventually) -> None:
    asked, admitted = [], asyncio.Event()

    async def admit(*of: object) -> None:
        asked.append(of)
        await admitted.wait()

    runtime.before_restart(admit)
    await runtime.apply(sandbox.shell("crash", "echo x >> data/runs; exit 3", data=True))
    runs = sandbox.directory / "crash/data/runs"
    await eventually(lambda: asked == [("crash", 1)])
    assert (runtime.state("crash").phase, runs.read_text()) == (Phase.BACKOFF, "x\n")
    admitted.set()
    await sandbox.text(runs, lambda text: text.count("x") > 2)
    await eventually(lambda: asked[:3] == [("crash", 1), ("crash", 2), ("crash", 3)])


async def test_a_restart_that_is_never_admitted_can_be_stopped_and_replaced(runtime, sandbox, eventually) -> None:
    asked, gone = [], []

    async def admit(name: str, _: int) -> None:
        asked.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            gone.append(name)

    runtime.before_restart(admit)
    component = sandbox.shell("crash", "exit 3")
    await runtime.apply(component)
    await eventually(lambda: asked)
    await runtime.stop("crash")
    assert (runtime.state("crash").phase, gone) == (Phase.ABSENT, ["crash"])
    await runtime.apply(component)
    await eventually(lambda: len(asked) == 2)
    await runtime.apply(replace(component, args=("-c", FOREVER)))
    await sandbox.phase(runtime, "crash", Phase.READY)
    assert len(gone) == 2


def waits(runs: list[float]) -> list[float]:
    backoff = RestartBackoff(Pace())
    return [backoff.next_wait(ran_seconds=ran) for ran in runs]


def assert_near(waits: list[float], longest: list[float]) -> None:
    """Each wait lies between its longest and half of that, which is the floor."""
    assert [wait for wait, most in zip(waits, longest, strict=True) if not most / 2 <= wait <= most] == []


def test_waits_double_from_1_to_300_s_and_start_over_after_a_run_of_300_s() -> None:
    assert_near(waits([0.1] * 11), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300])
    assert_near(waits([0.1, 299.0, 299.0, 300.0, 0.1]), [1, 2, 4, 1, 2])


def test_waits_are_spread() -> None:
    assert len({wait for _ in range(100) for wait in waits([0.0])}) == 100
