"""What becomes of components when their supervisor dies."""

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


async def test_an_independent_component_is_adopted(sandbox, is_running) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        assert runtime.names() == ["plain"]
        found = runtime.state("plain")
        assert (found.phase, found.pid) == (Phase.STARTING, pid)
        assert "not described again yet" in found.message

        component = sandbox.shell("plain", FOREVER)
        await runtime.apply(component)
        await sandbox.phase(runtime, "plain", Phase.READY, pid=pid)

        os.kill(pid, signal.SIGKILL)
        again = await sandbox.phase(runtime, "plain", Phase.READY, restarts=1)
        assert again.exit_code is None, "only a parent is told"
        await runtime.stop("plain")
        assert find_processes(sandbox.directory) == []


async def test_another_description_replaces_an_adopted_component(sandbox, is_running) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("plain", "exec sleep 2000"))
        assert not is_running(pid)
        assert find_processes(sandbox.directory) == [runtime.state("plain").pid]


@pytest.mark.parametrize("call", ["stop", "delete"])
async def test_an_adopted_component_can_be_ended_without_its_description(sandbox, is_running, call) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        await getattr(runtime, call)("plain")
        assert not is_running(pid)
        assert runtime.state("plain").phase is Phase.ABSENT
        assert runtime.names() == (["plain"] if call == "stop" else [])


async def test_an_adopted_component_that_ends_undescribed_waits_for_its_description(sandbox) -> None:
    pid = await killed_supervisor(sandbox, "plain", lifetime="Independent", script=FOREVER)
    async with sandbox.runtime() as runtime:
        os.kill(pid, signal.SIGTERM)
        await sandbox.phase(runtime, "plain", Phase.ENDED, pid=None)
        await runtime.apply(sandbox.shell("plain", FOREVER, restart=RestartPolicy.NEVER))
        await sandbox.phase(runtime, "plain", Phase.READY)


async def test_the_children_of_an_adopted_component_end_with_it(sandbox, is_running) -> None:
    script = "echo $$ > pid; sleep 1000 & echo $! > child; wait"
    pid = await killed_supervisor(sandbox, "parent", lifetime="Independent", script=script)
    child = int(await sandbox.text(sandbox.directory / "parent/child"))
    async with sandbox.runtime() as runtime:
        assert runtime.state("parent").pid == pid
        assert is_running(child)
        await runtime.stop("parent")
        assert not is_running(child)


async def test_a_bound_component_dies_with_its_supervisor_and_leaves_no_children(sandbox, is_running) -> None:
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


async def test_a_bound_component_has_ordinary_signal_handling(runtime, sandbox) -> None:
    script = "grep SigIgn /proc/self/status > data/ignored; exec sleep 1000"
    await runtime.apply(sandbox.shell("bound", script, data=True, lifetime=Lifetime.BOUND))
    ignored = int((await sandbox.text(sandbox.directory / "bound/data/ignored")).split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


async def test_a_later_runtime_in_the_same_process_adopts_too(sandbox) -> None:
    component = sandbox.shell("plain", FOREVER)
    async with sandbox.runtime() as runtime:
        await runtime.apply(component)
        pid = runtime.state("plain").pid
    async with sandbox.runtime() as runtime:
        await runtime.apply(component)
        assert runtime.state("plain").pid == pid
        os.kill(pid, signal.SIGKILL)
        await sandbox.phase(runtime, "plain", Phase.READY, restarts=1, exit_code=-signal.SIGKILL)


async def test_a_component_whose_directory_was_removed_under_it_is_still_known(sandbox, is_running) -> None:
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


async def test_half_removed_components_are_removed_on_the_next_entry(sandbox) -> None:
    async with sandbox.runtime():
        left = sandbox.directory / ".removed-x-0123/data"
        left.mkdir(parents=True)
    async with sandbox.runtime() as runtime:
        assert runtime.names() == []
        assert [path.name for path in sandbox.directory.iterdir()] == [".lock"]


async def test_end_processes_ends_all_below_a_directory_and_no_others(sandbox, tmp_path, is_running) -> None:
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
