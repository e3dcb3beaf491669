"""Restarts of components that exit by themselves."""

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


async def test_killed_component_is_restarted(runtime, sandbox) -> None:
    await runtime.apply(await sandbox.web(runtime, "web"))
    first = await sandbox.phase(runtime, "web", Phase.READY)
    os.kill(first.pid, signal.SIGKILL)
    second = await sandbox.phase(runtime, "web", Phase.READY, restarts=1)
    assert second.pid != first.pid
    assert second.exit_code == -signal.SIGKILL


async def test_backoff_message_has_exit_code_and_end_of_log(sandbox, caplog) -> None:
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


async def test_backoff_message_has_fatal_line_before_long_backtrace(sandbox) -> None:
    async with sandbox.runtime(pace=Pace(restart_base=1000.0, restart_limit=1000.0)) as runtime:
        script = "echo '[1][critical][assert] inotify_fd_ >= 0'; for i in $(seq 100); do echo frame $i; done; exit 7"
        await runtime.apply(sandbox.shell("crash", script))
        state = await sandbox.phase(runtime, "crash", Phase.BACKOFF)
        assert "; its last fatal line is: [1][critical][assert] inotify_fd_ >= 0; the end of its log" in state.message


async def test_change_of_grace_period_does_not_shorten_the_backoff(sandbox) -> None:
    async with sandbox.runtime(pace=Pace(restart_base=1000.0, restart_limit=1000.0)) as runtime:
        component = sandbox.shell("crash", "exit 1")
        await runtime.apply(component)
        await sandbox.phase(runtime, "crash", Phase.BACKOFF)
        await runtime.apply(replace(component, grace_seconds=1.0))
        assert runtime.state("crash").phase is Phase.BACKOFF
        await runtime.apply(replace(component, args=("-c", FOREVER)))
        await sandbox.phase(runtime, "crash", Phase.READY)


async def test_backoff_message_has_log_of_last_run_only(sandbox, runtime) -> None:
    script = "if [ -e data/ran ]; then exit 4; fi; touch data/ran; echo first run; exit 3"
    await runtime.apply(sandbox.shell("crash", script, data=True))
    state = await sandbox.phase(runtime, "crash", Phase.BACKOFF, exit_code=4)
    assert "first run" not in state.message


async def test_policy_never_runs_component_again_only_after_stop(runtime, sandbox) -> None:
    component = sandbox.shell("once", "echo x >> data/runs; exit 5", data=True, restart=RestartPolicy.NEVER)
    await runtime.apply(component)
    state = await sandbox.phase(runtime, "once", Phase.ENDED)
    assert (state.exit_code, state.restarts, state.pid) == (5, 0, None)
    await runtime.apply(component)
    assert runtime.state("once") == state
    await runtime.stop("once")
    await runtime.apply(component)
    await sandbox.phase(runtime, "once", Phase.ENDED)
    assert (sandbox.directory / "once/data/runs").read_text() == "x\nx\n"


async def test_missing_program_is_retried_until_it_exists(runtime, sandbox, tmp_path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    await runtime.apply(replace(sandbox.shell("gone", ""), program=str(program)))
    pid = runtime.state("gone").pid
    # Before its exec, the shell may not have read the script yet.
    await sandbox._eventually(Path(f"/proc/{pid}/cmdline").read_text, lambda text: text.startswith("sleep"))
    content = program.read_text()
    program.unlink()
    os.kill(pid, signal.SIGKILL)
    state = await sandbox.phase(runtime, "gone", Phase.BACKOFF, pid=None)
    await sandbox._eventually(lambda: runtime.state("gone").message, lambda text: "cannot be started" in text)
    assert state.exit_code == -signal.SIGKILL
    replacement = tmp_path / "new"
    replacement.write_text(content)
    replacement.chmod(0o755)
    replacement.rename(program)
    await sandbox.phase(runtime, "gone", Phase.READY)


async def test_restarted_process_reads_changed_reloaded_file(runtime, sandbox) -> None:
    component = sandbox.shell("reader", "cat files/f >> data/seen; exec sleep 1000", data=True)
    await runtime.apply(replace(component, files={"f": File(b"1", reloaded=True)}))
    pid = runtime.state("reader").pid
    seen = sandbox.directory / "reader/data/seen"
    await sandbox.text(seen)
    await runtime.apply(replace(component, files={"f": File(b"2", reloaded=True)}))
    assert runtime.state("reader").pid == pid
    os.kill(pid, signal.SIGKILL)
    await sandbox.text(seen, lambda text: text == "12")


async def test_missing_program_is_refused_and_leaves_no_component(runtime, sandbox) -> None:
    with pytest.raises(
        RuntimeFailure, match=r"Component x: there is no executable program 'nope'; looked for: /bin/nope"
    ):
        await runtime.apply(replace(sandbox.shell("x", ""), program="nope"))
    assert runtime.names() == []
    assert find_processes(sandbox.directory) == []


async def test_restart_waits_for_admission_with_number_of_failures(runtime, sandbox, eventually) -> None:
    requests, admission = [], asyncio.Event()

    async def admit(*of: object) -> None:
        requests.append(of)
        await admission.wait()

    runtime.before_restart(admit)
    await runtime.apply(sandbox.shell("crash", "echo x >> data/runs; exit 3", data=True))
    runs = sandbox.directory / "crash/data/runs"
    await eventually(lambda: requests == [("crash", 1)])
    assert (runtime.state("crash").phase, runs.read_text()) == (Phase.BACKOFF, "x\n")
    admission.set()
    await sandbox.text(runs, lambda text: text.count("x") > 2)
    await eventually(lambda: requests[:3] == [("crash", 1), ("crash", 2), ("crash", 3)])


async def test_restart_without_admission_can_be_stopped_and_replaced(runtime, sandbox, eventually) -> None:
    requests, cancellations = [], []

    async def admit(name: str, _: int) -> None:
        requests.append(name)
        try:
            await asyncio.Event().wait()
        finally:
            cancellations.append(name)

    runtime.before_restart(admit)
    component = sandbox.shell("crash", "exit 3")
    await runtime.apply(component)
    await eventually(lambda: requests)
    await runtime.stop("crash")
    assert (runtime.state("crash").phase, cancellations) == (Phase.ABSENT, ["crash"])
    await runtime.apply(component)
    await eventually(lambda: len(requests) == 2)
    await runtime.apply(replace(component, args=("-c", FOREVER)))
    await sandbox.phase(runtime, "crash", Phase.READY)
    assert len(cancellations) == 2


def waits(runs: list[float]) -> list[float]:
    backoff = RestartBackoff(Pace())
    return [backoff.next_wait(ran_seconds=ran) for ran in runs]


def assert_near(waits: list[float], longest: list[float]) -> None:
    """Assert that each wait is between half of its longest value and its longest value."""
    assert [wait for wait, most in zip(waits, longest, strict=True) if not most / 2 <= wait <= most] == []


def test_waits_double_from_1_to_300_s_and_reset_after_300_s_run() -> None:
    assert_near(waits([0.1] * 11), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300])
    assert_near(waits([0.1, 299.0, 299.0, 300.0, 0.1]), [1, 2, 4, 1, 2])


def test_waits_have_jitter() -> None:
    assert len({wait for _ in range(100) for wait in waits([0.0])}) == 100
