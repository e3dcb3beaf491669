"""Lifecycle of a component through the API of the runtime: apply, state, stop, delete."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest

from kplane.workloads import (
    File,
    Lifetime,
    Phase,
    ProcessRuntime,
    RestartPolicy,
    Runtime,
    RuntimeFailure,
    find_processes,
)

from .conftest import FAST

FOREVER = "exec sleep 1000"
STUBBORN = "trap '' TERM; sleep 1000 & echo $! > data/child; while :; do wait; done"


async def test_process_runtime_implements_runtime(runtime) -> None:
    face: Runtime = runtime
    assert face.names() == []
    assert face.state("nobody").phase is Phase.ABSENT


async def test_component_starts_becomes_ready_and_stops(runtime, sandbox, is_running) -> None:
    phases = []
    unsubscribe = runtime.subscribe(lambda name: phases.append(runtime.state(name).phase))
    await runtime.apply(await sandbox.web(runtime, "web"))
    started = runtime.state("web")
    assert (started.phase, started.restarts) == (Phase.STARTING, 0)
    assert is_running(started.pid)
    ready = await sandbox.phase(runtime, "web", Phase.READY)
    assert (ready.pid, ready.message) == (started.pid, "")

    await runtime.stop("web")
    assert not is_running(started.pid)
    assert runtime.state("web").phase is Phase.ABSENT
    assert runtime.state("web").exit_code == -signal.SIGTERM
    assert runtime.names() == ["web"], "its address and files are still there"
    assert list(dict.fromkeys(phases)) == [Phase.STARTING, Phase.READY, Phase.STOPPING, Phase.ABSENT]

    unsubscribe()
    unsubscribe()
    await runtime.apply(sandbox.shell("web", FOREVER))
    assert phases[-1] is Phase.ABSENT


async def test_component_without_probe_is_ready_once_it_runs(runtime, sandbox) -> None:
    await runtime.apply(sandbox.shell("plain", FOREVER))
    await sandbox.phase(runtime, "plain", Phase.READY)


async def test_only_a_changed_description_replaces_the_process(runtime, sandbox, is_running) -> None:
    component = sandbox.shell("plain", FOREVER, env={"A": "1"}, files={"f": File(b"1")})
    await runtime.apply(component)
    first = runtime.state("plain").pid
    await runtime.apply(replace(component, env={"A": "1"}, files={"f": File(b"1")}))
    assert runtime.state("plain").pid == first
    pids = [first]
    for changed in (
        replace(component, env={"A": "2"}),
        replace(component, files={"f": File(b"2")}),
        replace(component, args=("-c", "exec sleep 2000")),
        replace(component, lifetime=Lifetime.BOUND),
        replace(component, data=True),
    ):
        await runtime.apply(changed)
        assert not is_running(pids[-1]), "the old one had ended before the new one was started"
        pids.append(runtime.state("plain").pid)
    assert len(set(pids)) == len(pids)
    assert find_processes(sandbox.directory) == pids[-1:]


async def test_change_of_grace_period_keeps_the_process(runtime, sandbox) -> None:
    component = sandbox.shell("stubborn", STUBBORN, data=True)
    await runtime.apply(component)
    pid = runtime.state("stubborn").pid
    await sandbox.text(sandbox.directory / "stubborn/data/child")
    await runtime.apply(replace(component, grace_seconds=0.05))
    assert runtime.state("stubborn").pid == pid
    async with asyncio.timeout(60):
        await runtime.stop("stubborn")


async def test_component_ignoring_sigterm_is_killed_after_grace_period(runtime, sandbox, is_running) -> None:
    await runtime.apply(sandbox.shell("stubborn", STUBBORN, data=True, grace_seconds=0.3))
    pid = runtime.state("stubborn").pid
    child = int(await sandbox.text(sandbox.directory / "stubborn/data/child"))
    began = time.monotonic()
    await runtime.stop("stubborn")
    assert time.monotonic() - began >= 0.3
    assert not is_running(pid)
    assert not is_running(child)
    assert runtime.state("stubborn").exit_code == -signal.SIGKILL


async def test_children_end_with_the_main_process(runtime, sandbox, is_running) -> None:
    script = "sleep 1000 & echo $! > data/child; exit 0"
    await runtime.apply(sandbox.shell("parent", script, data=True, restart=RestartPolicy.NEVER))
    await sandbox.phase(runtime, "parent", Phase.ENDED)
    assert not is_running(int((sandbox.directory / "parent/data/child").read_text()))


async def test_frozen_component_becomes_unready_and_ready_again(runtime, sandbox) -> None:
    await runtime.apply(await sandbox.web(runtime, "web", probe={"timeout_seconds": 0.2, "failure_threshold": 2}))
    pid = (await sandbox.phase(runtime, "web", Phase.READY)).pid
    os.kill(pid, signal.SIGSTOP)
    frozen = await sandbox.phase(runtime, "web", Phase.UNREADY, pid=pid)
    assert "no answer after 0.2 s" in frozen.message
    os.kill(pid, signal.SIGCONT)
    await sandbox.phase(runtime, "web", Phase.READY, pid=pid)


async def test_hanging_component_is_killed_and_restarted(sandbox, caplog) -> None:
    async with sandbox.runtime(pace=replace(FAST, live_probe=0.1, live_failures=3)) as runtime:
        probe = {"timeout_seconds": 0.2}
        await runtime.apply(await sandbox.web(runtime, "web", probe=probe, liveness_path="/livez"))
        pid = (await sandbox.phase(runtime, "web", Phase.READY)).pid
        os.kill(pid, signal.SIGSTOP)
        restarted = await sandbox.phase(runtime, "web", Phase.READY, restarts=1)
        assert restarted.pid != pid
        assert "Component web hangs and is killed: GET http://127.0.0.1:" in caplog.text
        assert "/livez has no answer after 0.2 s, 3 times in a row" in caplog.text
        assert "was killed, because it hung (GET" in caplog.text


async def test_component_with_passing_failures_is_not_killed(sandbox) -> None:
    async with sandbox.runtime(pace=replace(FAST, live_probe=0.02, live_failures=1000)) as runtime:
        await runtime.apply(await sandbox.web(runtime, "web", liveness_path="/livez"))
        pid = (await sandbox.phase(runtime, "web", Phase.READY)).pid
        (sandbox.directory / "web/broken").touch()
        await sandbox.phase(runtime, "web", Phase.UNREADY)
        (sandbox.directory / "web/broken").unlink()
        await sandbox.phase(runtime, "web", Phase.READY, pid=pid, restarts=0)


async def test_unready_message_has_response_of_the_probe(runtime, sandbox) -> None:
    component = await sandbox.web(runtime, "web")
    await runtime.apply(component)
    await sandbox.phase(runtime, "web", Phase.READY)
    (sandbox.directory / "web/broken").touch()
    broken = await sandbox.phase(runtime, "web", Phase.UNREADY)
    port = component.ports[0].number
    assert broken.message == f"GET http://127.0.0.1:{port}/ answers 500: something is broken"


async def test_failures_below_threshold_keep_component_ready(runtime, sandbox) -> None:
    phases = []
    await runtime.apply(await sandbox.web(runtime, "web", probe={"failure_threshold": 1000}))
    await sandbox.phase(runtime, "web", Phase.READY)
    runtime.subscribe(lambda name: phases.append(runtime.state(name).phase))
    (sandbox.directory / "web/broken").touch()
    log = runtime.log_path("web")
    await sandbox.text(log, lambda text: " 500 " in text)
    assert phases == []


async def test_delete_removes_process_and_files_and_can_be_repeated(runtime, sandbox, is_running) -> None:
    await runtime.apply(await sandbox.web(runtime, "web", data=True, files={"f": File(b"x")}))
    pid = runtime.state("web").pid
    await runtime.delete("web")
    await runtime.delete("web")
    assert not is_running(pid)
    assert [path.name for path in sandbox.directory.iterdir()] == [".lock"]
    assert runtime.names() == []
    assert runtime.state("web").phase is Phase.ABSENT


async def test_stop_keeps_data_and_address(runtime, sandbox) -> None:
    component = await sandbox.web(runtime, "web", data=True)
    await runtime.apply(component)
    file = sandbox.directory / "web/data/kept"
    file.write_text("kept")
    await runtime.stop("web")
    await runtime.stop("web")
    assert file.read_text() == "kept"
    assert (await runtime.reserve("web", ports=["http"])).ports["http"] == component.ports[0].number


async def test_slow_stop_does_not_delay_other_components(runtime, sandbox) -> None:
    await runtime.apply(sandbox.shell("slow", STUBBORN, data=True, grace_seconds=600.0))
    await sandbox.text(sandbox.directory / "slow/data/child")
    stopping = asyncio.create_task(runtime.stop("slow"))
    await sandbox.phase(runtime, "slow", Phase.STOPPING)
    for name in ("a", "b"):
        await runtime.apply(sandbox.shell(name, FOREVER))
        await runtime.stop(name)
    assert not stopping.done()
    os.kill(runtime.state("slow").pid, signal.SIGKILL)
    await stopping


async def test_concurrent_calls_for_a_component_run_in_order(runtime, sandbox) -> None:
    component = sandbox.shell("busy", FOREVER)
    await asyncio.gather(
        *(
            call
            for i in range(5)
            for call in (
                runtime.apply(replace(component, env={"I": str(i)})),
                runtime.stop("busy"),
                runtime.delete("busy"),
            )
        ),
        runtime.apply(component),
    )
    assert find_processes(sandbox.directory) == [runtime.state("busy").pid]


async def test_stop_right_after_start_reports_stopping_and_absent(runtime, sandbox) -> None:
    phases = []
    runtime.subscribe(lambda name: phases.append(runtime.state(name).phase))
    await runtime.apply(sandbox.shell("short", FOREVER))
    await asyncio.create_task(runtime.stop("short"))
    after = phases[phases.index(Phase.STOPPING) :]
    assert list(dict.fromkeys(after)) == [Phase.STOPPING, Phase.ABSENT]


async def test_cancelled_stop_continues_and_next_call_waits_for_it(runtime, sandbox, is_running) -> None:
    component = sandbox.shell("stubborn", STUBBORN, data=True, grace_seconds=0.5)
    await runtime.apply(component)
    pid = runtime.state("stubborn").pid
    await sandbox.text(sandbox.directory / "stubborn/data/child")
    stopping = asyncio.create_task(runtime.stop("stubborn"))
    await sandbox.phase(runtime, "stubborn", Phase.STOPPING)
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    assert is_running(pid)
    await runtime.apply(component)
    assert not is_running(pid)
    assert runtime.state("stubborn").pid in find_processes(sandbox.directory)


async def test_cancelled_replacement_leaves_no_process(runtime, sandbox) -> None:
    component = sandbox.shell("stubborn", STUBBORN, data=True, grace_seconds=0.3)
    await runtime.apply(component)
    await sandbox.text(sandbox.directory / "stubborn/data/child")
    replacing = asyncio.create_task(runtime.apply(replace(component, env={"NEW": "1"})))
    await sandbox.phase(runtime, "stubborn", Phase.STOPPING)
    replacing.cancel()
    await asyncio.wait([replacing])
    await sandbox.phase(runtime, "stubborn", Phase.ABSENT)
    assert find_processes(sandbox.directory) == []


async def test_exit_ends_bound_and_keeps_independent_components(sandbox, is_running) -> None:
    async with sandbox.runtime() as runtime:
        for lifetime in Lifetime:
            await runtime.apply(sandbox.shell(lifetime.lower(), FOREVER, lifetime=lifetime))
        bound, independent = runtime.state("bound").pid, runtime.state("independent").pid
    assert not is_running(bound)
    assert is_running(independent)
    assert len(asyncio.all_tasks()) == 1, "no task is left"
    with pytest.raises(RuntimeFailure, match="not open"):
        await runtime.apply(sandbox.shell("late", FOREVER))


async def test_second_runtime_in_the_same_directory_is_refused(runtime, sandbox) -> None:
    with pytest.raises(RuntimeFailure, match=rf"used by another runtime \(process {os.getpid()}\)"):
        async with sandbox.runtime():
            pass


async def test_running_component_does_not_lock_the_directory(sandbox) -> None:
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("plain", FOREVER))
    async with sandbox.runtime() as runtime:
        assert runtime.names() == runtime.names(prefix="pla") == ["plain"]
        assert runtime.names(prefix="plains") == []


async def test_subscriber_is_notified_once_component_is_deleted(runtime, sandbox) -> None:
    await runtime.apply(sandbox.shell("plain", FOREVER))
    notifications = []
    runtime.subscribe(lambda _: notifications.append(runtime.names()))
    await runtime.stop("plain")
    assert notifications[-1] == ["plain"]
    await runtime.delete("plain")
    assert notifications[-1] == []
    count = len(notifications)
    await runtime.delete("plain")
    assert len(notifications) == count


async def test_failing_subscriber_is_logged_and_others_are_notified(runtime, sandbox, caplog) -> None:
    notifications = []

    def fail(name: str) -> None:
        raise ZeroDivisionError(name)

    runtime.subscribe(fail)
    runtime.subscribe(notifications.append)
    await runtime.apply(sandbox.shell("plain", FOREVER))
    await sandbox.phase(runtime, "plain", Phase.READY)
    assert notifications
    assert "A subscriber failed on a change of component plain" in caplog.text


async def test_unusable_directory_is_named_in_the_error(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeFailure, match=r"file/below cannot be used"):
        async with ProcessRuntime(tmp_path / "file/below", programs=[]):
            pass
