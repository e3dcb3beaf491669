"""Components whose supervisor has died: the next runtime adopts or ends them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

import pytest

from kplane.workloads import Lifetime, Phase, RestartPolicy, end_processes, find_processes

FOREVER = "exec sleep 1000"


async def killed_supervisor(sandbox, name: str, *, lifetime: str, script: str) -> int:
    supervisor, pid = await sandbox.supervisor(name, lifetime=lifetime, script=script)
    supervisor.kill()
    await supervisor.communicate()
    return pid


async def test_independent_component_is_adopted_by_next_runtime(sandbox, is_running) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        assert runtime.names() == ["plain"]
        adopted = runtime.state("plain")
        assert (adopted.phase, adopted.pid) == (Phase.STARTING, pid)
        assert "not described again yet" in adopted.message

        component = sandbox.shell("plain", FOREVER)
        await runtime.apply(component)
        await sandbox.phase(runtime, "plain", Phase.READY, pid=pid)

        os.kill(pid, signal.SIGKILL)
        restarted = await sandbox.phase(runtime, "plain", Phase.READY, restarts=1)
        assert restarted.exit_code is None, "only a parent is told"
        await runtime.stop("plain")
        assert find_processes(sandbox.directory) == []


async def test_changed_description_replaces_an_adopted_component(sandbox, is_running) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("plain", "exec sleep 2000"))
        assert not is_running(pid)
        assert find_processes(sandbox.directory) == [runtime.state("plain").pid]


@pytest.mark.parametrize("call", ["stop", "delete"])
async def test_adopted_component_can_be_ended_without_description(sandbox, is_running, call) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        await getattr(runtime, call)("plain")
        assert not is_running(pid)
        assert runtime.state("plain").phase is Phase.ABSENT
        assert runtime.names() == (["plain"] if call == "stop" else [])


async def test_adopted_component_that_exits_waits_for_its_description(sandbox) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        os.kill(pid, signal.SIGTERM)
        await sandbox.phase(runtime, "plain", Phase.ENDED, pid=None)
        await runtime.apply(sandbox.shell("plain", FOREVER, restart=RestartPolicy.NEVER))
        await sandbox.phase(runtime, "plain", Phase.READY)


async def test_stop_of_an_adopted_component_ends_its_children(sandbox, is_running) -> None:
    script = "echo $$ > pid; sleep 1000 & echo $! > child; wait"
    pid = await killed_supervisor(sandbox, "parent", lifetime="Independent", script=script)
    child = int(await sandbox.text(sandbox.directory / "parent/child"))
    async with sandbox.runtime() as runtime:
        assert runtime.state("parent").pid == pid
        assert is_running(child)
        await runtime.stop("parent")
        assert not is_running(child)


async def test_bound_component_dies_and_next_runtime_ends_its_children(sandbox, is_running) -> None:
    script = "sleep 1000 & echo $! > child; wait"
    supervisor, pid = await sandbox.supervisor("bound", lifetime="Bound", script=script)
    child = int(await sandbox.text(sandbox.directory / "bound/child"))
    assert is_running(pid)
    supervisor.kill()
    await supervisor.communicate()
    await sandbox.gone(pid)
    assert is_running(child), "the kernel ends the main process only; the next runtime ends the rest"
    async with sandbox.runtime() as runtime:
        assert not is_running(child)
        assert runtime.state("bound").phase is Phase.ABSENT
        assert runtime.names() == ["bound"]


async def test_bound_component_does_not_ignore_sigpipe(runtime, sandbox) -> None:
    script = "grep SigIgn /proc/self/status > data/ignored; exec sleep 1000"
    await runtime.apply(sandbox.shell("bound", script, data=True, lifetime=Lifetime.BOUND))
    ignored_signals = int((await sandbox.text(sandbox.directory / "bound/data/ignored")).split()[1], 16)
    assert not ignored_signals & (1 << (signal.SIGPIPE - 1))


async def test_later_runtime_in_the_same_process_adopts_component(sandbox) -> None:
    component = sandbox.shell("plain", FOREVER)
    async with sandbox.runtime() as runtime:
        await runtime.apply(component)
        pid = runtime.state("plain").pid
    async with sandbox.runtime() as runtime:
        await runtime.apply(component)
        assert runtime.state("plain").pid == pid
        os.kill(pid, signal.SIGKILL)
        await sandbox.phase(runtime, "plain", Phase.READY, restarts=1, exit_code=-signal.SIGKILL)


async def test_component_with_removed_directory_is_still_adopted(sandbox, is_running) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    shutil.rmtree(sandbox.directory / "plain")
    async with sandbox.runtime() as runtime:
        assert runtime.names() == ["plain"]
        await runtime.apply(sandbox.shell("plain", FOREVER))
        assert runtime.state("plain").pid == pid
        shutil.rmtree(sandbox.directory / "plain")
        await runtime.delete("plain")
        assert runtime.names() == []
        assert not is_running(pid)


async def test_partly_removed_components_are_removed_on_next_entry(sandbox) -> None:
    async with sandbox.runtime():
        remnant = sandbox.directory / ".removed-x-0123/data"
        remnant.mkdir(parents=True)
    async with sandbox.runtime() as runtime:
        assert runtime.names() == []
        assert [path.name for path in sandbox.directory.iterdir()] == [".lock"]


async def test_end_processes_ends_only_processes_below_directory(sandbox, tmp_path, is_running) -> None:
    stubborn = "trap '' TERM; sleep 1000 & touch ready; while :; do wait; done"
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("plain", FOREVER))
        await runtime.apply(sandbox.shell("stubborn", stubborn))
        await sandbox._eventually((sandbox.directory / "stubborn/ready").exists)
    assert len(find_processes(tmp_path)) == 3
    assert find_processes(tmp_path / "comp") == [], "a common beginning of the name does not count"
    assert await end_processes(tmp_path / "comp", grace_seconds=0.0) == []
    pids = find_processes(tmp_path)
    async with asyncio.timeout(60):
        assert sorted(await end_processes(tmp_path, grace_seconds=0.2)) == sorted(pids)
    assert not any(is_running(pid) for pid in pids)
    assert find_processes(tmp_path) == []
