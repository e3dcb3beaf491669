"""A component whose new description fails runs on as before."""

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
"""Arguments with which the server ends at its start."""


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
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{component.ports[0].number}/") as got:
        return got.status


async def test_former_description_serves_on_and_says_what_failed(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    assert state.rolling
    assert not runtime.settled("web")
    assert state.message.startswith("ended with exit code 1 after ")
    assert "FileNotFoundError" in state.message
    assert await answer(served) == 200


async def test_refused_description_starts_nothing_when_applied_again(runtime, sandbox, served) -> None:
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


async def test_change_that_is_taken_back_starts_nothing(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served))
    pid = (await sandbox.phase(runtime, "web", Phase.READY, failing=True)).pid
    await runtime.apply(served)
    await sandbox.phase(runtime, "web", Phase.READY, failing=False, message="", pid=pid)
    assert runtime.settled("web")


async def test_corrected_description_replaces_the_former_one(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served))
    pid = (await sandbox.phase(runtime, "web", Phase.READY, failing=True)).pid
    await runtime.apply(replace(served, env={"CORRECTED": "1"}))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=False, rolling=False, message="")
    assert state.pid != pid
    # It is what the next mistake goes back to.
    await runtime.apply(with_mistake(served))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    assert b"CORRECTED=1" in Path(f"/proc/{state.pid}/environ").read_bytes()


@pytest.fixture
async def checked(runtime, sandbox):
    """A description whose program judges its arguments, with a process that is ready."""
    judge = "import sys; sys.exit('Error: unknown flag: --bad' if '--bad' in sys.argv else 0)"
    component = await sandbox.web(runtime, "web", files=TOKEN, fallback=Fallback(files=("token",)), check=("-c", judge))
    await runtime.apply(component)
    await sandbox.phase(runtime, "web", Phase.READY)
    return component


def with_bad_flag(component, **fields):
    return replace(component, args=(*component.args, "--bad"), **fields)


async def test_refused_arguments_interrupt_nothing(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    for _ in range(2):
        await runtime.apply(with_bad_flag(checked))
        state = runtime.state("web")
        assert (state.phase, state.pid, state.failing, state.rolling) == (Phase.READY, pid, True, True)
        assert state.message == f"{Path(sys.executable).name} refuses its arguments: Error: unknown flag: --bad"
    await sandbox.phase(runtime, "web", Phase.READY, failing=True, message=state.message)
    assert await answer(checked) == 200


async def test_refused_arguments_that_are_taken_back_or_corrected(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    await runtime.apply(with_bad_flag(checked))
    await runtime.apply(checked)
    await sandbox.phase(runtime, "web", Phase.READY, failing=False, message="", pid=pid)
    assert runtime.settled("web")
    await runtime.apply(with_bad_flag(checked))
    await runtime.apply(replace(checked, env={"CORRECTED": "1"}))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=False, rolling=False, message="")
    assert state.pid != pid


async def test_refused_arguments_with_another_key_never_give_way(runtime, sandbox, checked) -> None:
    await runtime.apply(with_bad_flag(checked, files={"token": File(b"two")}))
    assert not runtime.state("web").failing
    assert (sandbox.directory / "web/files/token").read_bytes() == b"two"


async def test_reloaded_files_reach_the_process_whose_change_is_refused(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    await runtime.apply(with_bad_flag(checked, files={**TOKEN, "ca": File(b"new", reloaded=True)}))
    # It was not among the files of the process, which does not read it.
    assert not (sandbox.directory / "web/files/ca").exists()
    assert runtime.state("web").pid == pid


async def test_judge_that_does_not_judge_decides_nothing(runtime, sandbox, checked) -> None:
    pid = runtime.state("web").pid
    killed = ("-c", "import os; os.kill(os.getpid(), 9)")
    await runtime.apply(with_mistake(checked, check=killed))
    state = await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    assert state.pid != pid
    assert state.message.startswith("ended with exit code 1 after ")


async def test_arguments_of_an_adopted_process_are_judged_too(sandbox) -> None:
    async with sandbox.runtime() as runtime:
        component = await sandbox.web(runtime, "web", fallback=Fallback(), check=("-c", "raise SystemExit(1)"))
        await runtime.apply(component)
        pid = (await sandbox.phase(runtime, "web", Phase.READY)).pid
    async with sandbox.runtime() as runtime:
        await runtime.apply(replace(component, env={"A": "b"}))
        await sandbox.phase(runtime, "web", Phase.READY, failing=True, pid=pid)
        await runtime.stop("web")


async def test_description_with_another_key_never_gives_way(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served, files={"token": File(b"two")}))
    await sandbox.phase(runtime, "web", Phase.BACKOFF)
    assert not runtime.state("web").failing
    assert (sandbox.directory / "web/files/token").read_bytes() == b"two"


async def test_description_with_another_argument_never_gives_way(runtime, sandbox, served) -> None:
    await runtime.apply(with_mistake(served, fallback=Fallback(arguments=(REFUSED[0],))))
    await sandbox.phase(runtime, "web", Phase.BACKOFF)
    assert not runtime.state("web").failing


async def test_end_by_a_signal_is_no_mistake_of_the_description(runtime, sandbox, served) -> None:
    killed = replace(served, args=("-c", "import os; os.kill(os.getpid(), 9)"))
    await runtime.apply(killed)
    state = await sandbox.phase(runtime, "web", Phase.BACKOFF)
    assert (state.failing, state.exit_code) == (False, -9)


async def test_component_that_slept_wakes_as_before(runtime, sandbox, served) -> None:
    await runtime.stop("web")
    await runtime.apply(with_mistake(served))
    await sandbox.phase(runtime, "web", Phase.READY, failing=True)
    await runtime.stop("web")
    await runtime.apply(with_mistake(served))
    await sandbox.phase(runtime, "web", Phase.READY, failing=True)


async def test_process_of_an_earlier_runtime_serves_on(sandbox) -> None:
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


async def test_both_are_tried_in_turn_while_neither_starts(runtime, sandbox, served, tmp_path) -> None:
    script = "import os, runpy, sys; os.path.exists(sys.argv.pop(1)) or sys.exit('etcd is away'); sys.argv.pop(0)"
    script += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    needed = tmp_path / "etcd"
    needed.touch()
    both = replace(served, program=sys.executable, args=("-c", script, str(needed), *served.args))
    await runtime.apply(both)
    await sandbox.phase(runtime, "web", Phase.READY, failing=False)
    needed.unlink()
    changed = replace(both, env={"CHANGED": "1"})
    await runtime.apply(changed)
    await sandbox.phase(runtime, "web", Phase.BACKOFF, failing=False)
    await sandbox.phase(runtime, "web", Phase.BACKOFF, failing=True)
    needed.touch()
    await sandbox.phase(runtime, "web", Phase.READY)


async def test_refused_description_is_tried_again_later(sandbox, tmp_path) -> None:
    pace = replace(FAST, refused_base=0.2, refused_limit=0.2)
    assert Pace().refused_base > 60
    async with sandbox.runtime(pace=pace) as runtime:
        component = await sandbox.web(runtime, "web", fallback=Fallback())
        await runtime.apply(component)
        await sandbox.phase(runtime, "web", Phase.READY)
        refused = with_mistake(component)
        await runtime.apply(refused)
        first = await sandbox.phase(runtime, "web", Phase.READY, failing=True)

        async def again():
            await runtime.apply(refused)
            return runtime.state("web")

        await sandbox._eventually(again, lambda state: state.pid != first.pid)
        await sandbox.phase(runtime, "web", Phase.READY, failing=True)
        await runtime.stop("web")
