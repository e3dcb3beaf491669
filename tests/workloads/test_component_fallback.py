"""Fallback: a component keeps its former description while its new description fails."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from kplane.workloads import Fallback, File, Pace, Phase

from .conftest import FAST

TOKEN = {"token": File(b"one")}
REFUSED = ("no-such-certificate", "no-such-key")
"""Arguments that make the server exit at its start."""


@pytest.fixture
async def served(runtime, sandbox):
    """A description with a fallback, whose process is ready."""
    component = await sandbox.web(runtime, "web", files=TOKEN, fallback=Fallback(files=("token",)))
    await runtime.apply(component)
    await sandbox.phase(runtime, "web", Phase.READY)
    return component


def with_mistake(component, **fields):
    return replace(component, args=(*component.args, *REFUSED), **fields)


async def answer(component) -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{component.ports[0].number}/") as response,
    ):
        return response.status


async def test_former_description_serves_and_state_has_the_failure(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    assert state.rolling
    assert not runtime.settled("web")
    assert state.message.startswith("ended with exit code 1 after ")
    assert "FileNotFoundError" in state.message
    assert await answer(served) == 200


async def test_refused_description_starts_no_process_if_reapplied(runtime, sandbox, served) -> None:
    component = with_mistake(served, files={**TOKEN, "ca": File(b"first", reloaded=True)})
    await runtime.apply(component)
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    await runtime.apply(component)
    assert runtime.state("web") == state


async def test_reloaded_files_reach_the_former_process(runtime, sandbox) -> None:
    files = {"ca": File(b"first", reloaded=True), "policy": File(b"good")}
    component = await sandbox.web(runtime, "web", files=files, fallback=Fallback())
    await runtime.apply(component)
    await sandbox.phase(runtime, "web", Phase.READY)
    directory = sandbox.directory / "web/files"
    for content in (b"second", b"third"):
        renewed = {"ca": File(content, reloaded=True), "policy": File(b"bad")}
        await runtime.apply(with_mistake(component, files=renewed))
        await sandbox.phase(runtime, "web", Phase.READY, failing=True)
        assert (directory / "ca").read_bytes() == content
        assert (directory / "policy").read_bytes() == b"good"


async def test_reverted_change_keeps_the_running_process(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served))
    pid = (await sandbox.phase(runtime, "web", Phase.READY, failing=True)).pid
    await runtime.apply(served)
    await sandbox.phase(runtime, "web", Phase.READY, failing=False, message="", pid=pid)
    assert runtime.settled("web")


async def test_corrected_description_replaces_former_description(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served))
    pid = (await sandbox.phase(runtime, "web", Phase.READY, failing=True)).pid
    await runtime.apply(replace(served, env={"CORRECTED": "1"}))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=False, rolling=False, message="")
    assert state.pid != pid
    # The next failing description falls back to the corrected description.
    await runtime.apply(with_mistake(served))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    assert b"CORRECTED=1" in Path(f"/proc/{state.pid}/environ").read_bytes()


@pytest.fixture
async def checked(runtime, sandbox):
    """A description with a check of its arguments, whose process is ready."""
    script = "import sys; sys.exit('Error: unknown flag: --bad' if '--bad' in sys.argv else 0)"
    component = await sandbox.web(
        runtime, "web", files=TOKEN, fallback=Fallback(files=("token",)), check=("-c", script)
    )
    await runtime.apply(component)
    await sandbox.phase(runtime, "web", Phase.READY)
    return component


def with_bad_flag(component, **fields):
    return replace(component, args=(*component.args, "--bad"), **fields)


async def test_refused_arguments_keep_the_process_running(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    for _ in range(2):
        await runtime.apply(with_bad_flag(checked))
        state = runtime.state("web")
        assert (state.phase, state.pid, state.failing, state.rolling) == (Phase.READY, pid, True, True)
        assert state.message == f"{Path(sys.executable).name} refuses its arguments: Error: unknown flag: --bad"
    await sandbox.phase(runtime, "web", Phase.READY, failing=True, message=state.message)
    assert await answer(checked) == 200


async def test_refused_arguments_can_be_reverted_or_corrected(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    await runtime.apply(with_bad_flag(checked))
    await runtime.apply(checked)
    await sandbox.phase(runtime, "web", Phase.READY, failing=False, message="", pid=pid)
    assert runtime.settled("web")
    await runtime.apply(with_bad_flag(checked))
    await runtime.apply(replace(checked, env={"CORRECTED": "1"}))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=False, rolling=False, message="")
    assert state.pid != pid


async def test_refused_arguments_with_changed_key_do_not_fall_back(runtime, sandbox, checked) -> None:
    await runtime.apply(with_bad_flag(checked, files={"token": File(b"two")}))
    assert not runtime.state("web").failing
    assert (sandbox.directory / "web/files/token").read_bytes() == b"two"


async def test_refused_change_adds_no_reloaded_file(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    await runtime.apply(with_bad_flag(checked, files={**TOKEN, "ca": File(b"new", reloaded=True)}))
    # The running process was started without file `ca`, so it does not read this file.
    assert not (sandbox.directory / "web/files/ca").exists()
    assert runtime.state("web").pid == pid


async def test_killed_argument_check_does_not_refuse_description(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    check = ("-c", "import os; os.kill(os.getpid(), 9)")
    await runtime.apply(with_mistake(checked, check=check))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    assert state.pid != pid
    assert state.message.startswith("ended with exit code 1 after ")


async def test_arguments_of_an_adopted_process_are_checked(sandbox) -> None:
    async with sandbox.runtime() as runtime:
        component = await sandbox.web(runtime, "web", fallback=Fallback(), check=("-c", "raise SystemExit(1)"))
        await runtime.apply(component)
        pid = (await sandbox.phase(runtime, "web", Phase.READY)).pid
    async with sandbox.runtime() as runtime:
        await runtime.apply(replace(component, env={"A": "b"}))
        await sandbox.phase(runtime, "web", Phase.READY, failing=True, pid=pid)
        await runtime.stop("web")


async def test_description_with_changed_key_does_not_fall_back(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served, files={"token": File(b"two")}))
    await sandbox.phase(runtime, "web", Phase.BACKOFF)
    assert not runtime.state("web").failing
    assert (sandbox.directory / "web/files/token").read_bytes() == b"two"


async def test_description_with_changed_argument_does_not_fall_back(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served, fallback=Fallback(arguments=(REFUSED[0],))))
    await sandbox.phase(runtime, "web", Phase.BACKOFF)
    assert not runtime.state("web").failing


async def test_exit_by_signal_does_not_mark_description_as_failing(runtime, sandbox, served) -> None:
    component = replace(served, args=("-c", "import os; os.kill(os.getpid(), 9)"))
    await runtime.apply(component)
    state = await sandbox.phase(runtime, "web", Phase.BACKOFF)
    assert (state.failing, state.exit_code) == (False, -9)


async def test_stopped_component_starts_with_former_description(runtime, sandbox, served) -> None:
    await runtime.stop("web")
    await runtime.apply(with_mistake(served))
    await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    await runtime.stop("web")
    await runtime.apply(with_mistake(served))
    await sandbox.phase(runtime, "web", Phase.READY, failing=True)


async def test_description_of_an_earlier_runtime_is_a_fallback(sandbox) -> None:
    async with sandbox.runtime() as runtime:
        component = await sandbox.web(runtime, "web", files=TOKEN, env={"A": "b=c"}, fallback=Fallback())
        await runtime.apply(component)
        await sandbox.phase(runtime, "web", Phase.READY)
    async with sandbox.runtime() as runtime:
        await runtime.apply(with_mistake(component))
        await sandbox.phase(runtime, "web", Phase.READY, failing=True)
        await runtime.apply(component)
        await sandbox.phase(runtime, "web", Phase.READY, failing=False)
        await runtime.stop("web")


async def test_both_descriptions_alternate_while_neither_starts(runtime, sandbox, served, tmp_path) -> None:
    script = "import os, runpy, sys; os.path.exists(sys.argv.pop(1)) or sys.exit('etcd is away'); sys.argv.pop(0)"
    script += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    dependency = tmp_path / "etcd"
    dependency.touch()
    former = replace(served, program=sys.executable, args=("-c", script, str(dependency), *served.args))
    await runtime.apply(former)
    await sandbox.phase(runtime, "web", Phase.READY, failing=False)
    dependency.unlink()
    changed = replace(former, env={"CHANGED": "1"})
    await runtime.apply(changed)
    await sandbox.phase(runtime, "web", Phase.BACKOFF, failing=False)
    await sandbox.phase(runtime, "web", Phase.BACKOFF, failing=True)
    dependency.touch()
    await sandbox.phase(runtime, "web", Phase.READY)


async def test_refused_description_is_retried_after_a_delay(sandbox, tmp_path) -> None:
    pace = replace(FAST, refused_base=0.2, refused_limit=0.2)
    assert Pace().refused_base > 60
    async with sandbox.runtime(pace=pace) as runtime:
        component = await sandbox.web(runtime, "web", fallback=Fallback())
        await runtime.apply(component)
        await sandbox.phase(runtime, "web", Phase.READY)
        description = with_mistake(component)
        await runtime.apply(description)
        first = await sandbox.phase(runtime, "web", Phase.READY, failing=True)

        async def again():
            await runtime.apply(description)
            return runtime.state("web")

        await sandbox._eventually(again, lambda state: state.pid != first.pid)
        await sandbox.phase(runtime, "web", Phase.READY, failing=True)
        await runtime.stop("web")
