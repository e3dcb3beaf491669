"""A component that takes more memory than it may is ended by the kernel, where the control group may be divided."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kplane.workloads import Component, Lifetime, Phase
from kplane.workloads.processes.memory_group import MemoryGroups, is_delegated
from kplane.workloads.processes.oom_kills import find_counter

LIMIT = 64 << 20
HUNGRY = "import time; taken = b'x' * (200 << 20); time.sleep(1000)"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a group of version 2 that has this process and is delegated; a plain directory takes no moves."""
    path = tmp_path / "unit.service"
    path.mkdir()
    (path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    (path / "cgroup.controllers").write_text("cpu memory pids\n")
    (path / "cgroup.subtree_control").write_text("")
    (path / "memory.events").write_text("oom_kill 0\n")
    marks = {str(path): b"1"}
    monkeypatch.setattr(os, "getxattr", lambda of, _: marks[str(of)])

    def move(self: Path, text: str, *, plain: Callable = Path.write_text) -> int:
        if self.name == "cgroup.procs":
            plain(path / "cgroup.procs", "")
        return plain(self, text)

    monkeypatch.setattr(Path, "write_text", move)
    return path


def groups(directory: Path, group: Path) -> MemoryGroups:
    return MemoryGroups(directory, counter=group / "memory.events")


def test_in_version_2_this_process_leaves_the_group_that_is_divided(tmp_path: Path, group: Path) -> None:
    made = groups(tmp_path, group).make("a", limit_bytes=LIMIT)
    assert (group / "kplane-supervisor/cgroup.procs").read_text() == str(os.getpid())
    assert (group / "cgroup.subtree_control").read_text() == "+memory"
    assert made is not None
    assert made.entry.parent.parent == group
    assert (made.entry.parent / "memory.max").read_text() == str(LIMIT)


def test_swap_is_no_way_out_and_what_belongs_together_ends_together(tmp_path: Path, group: Path) -> None:
    made = groups(tmp_path, group)
    first = made.make("a", limit_bytes=LIMIT)
    assert first is not None
    for file in ("memory.swap.max", "memory.oom.group"):
        (first.entry.parent / file).write_text("max")
    assert made.make("a", limit_bytes=2 * LIMIT) is first
    assert (first.entry.parent / "memory.max").read_text() == str(2 * LIMIT)
    assert (first.entry.parent / "memory.swap.max").read_text() == "0"
    assert (first.entry.parent / "memory.oom.group").read_text() == "1"


def test_kills_in_the_group_explain_one_end(tmp_path: Path, group: Path) -> None:
    made = groups(tmp_path, group).make("a", limit_bytes=LIMIT)
    assert made is not None
    assert not made.take_kills()
    (made.entry.parent / "memory.events").write_text("oom 1\noom_kill 3\n")
    assert [made.take_kills(), made.take_kills()] == [True, False]


def _undelegated(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getxattr", lambda *_: b"0")


def _of_others(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group / "cgroup.procs").rename(group / "away")
    (group / "cgroup.procs").symlink_to(os.devnull)


def _without_controller(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group / "cgroup.controllers").write_text("cpu pids\n")


def _read_only(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "mkdir", refuse)


def _not_divisible(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (group / "cgroup.subtree_control").unlink()
    (group / "cgroup.subtree_control").mkdir()


@pytest.mark.parametrize("spoil", [_undelegated, _of_others, _without_controller, _read_only, _not_divisible])
def test_what_may_not_be_divided_is_left_as_it_is_and_that_is_said_once(
    tmp_path: Path,
    group: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[Path, pytest.MonkeyPatch], None],
) -> None:
    caplog.set_level(logging.INFO)
    spoil(group, monkeypatch)
    before = sorted(path.name for path in group.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", _remove)  # a control group goes with the files that the kernel has in it
        made = groups(tmp_path, group)
        assert [made.make("a", limit_bytes=LIMIT), made.make("b", limit_bytes=LIMIT)] == [None, None]
    assert sorted(path.name for path in group.iterdir()) == before
    assert len([line for line in caplog.messages if "not bounded by control groups" in line]) == 1


def _remove(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()
    os.rmdir(path)


async def test_groups_of_an_earlier_run_and_of_what_has_ended_are_removed_and_no_others(
    tmp_path: Path, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rmdir", _remove)
    for directory in (tmp_path, tmp_path / "other"):
        assert groups(directory, group).make("a", limit_bytes=LIMIT) is not None
        with (group / "cgroup.procs").open("w") as file:  # another run begins
            file.write(f"{os.getpid()}\n")
    (group / "somebody").mkdir()
    made = groups(tmp_path, group)
    made.clear()
    assert made.make("b", limit_bytes=LIMIT) is not None
    await made.remove("b")
    await made.remove("c")
    left = sorted(path.name.rpartition("-")[2] for path in group.iterdir() if path.is_dir())
    assert left == ["a", "somebody", "supervisor"]


async def test_a_component_enters_its_group_before_it_runs_and_runs_also_where_that_is_gone(
    sandbox, group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kplane.workloads.processes.memory_group.find_counter", lambda: group / "memory.events")
    monkeypatch.setattr(Path, "rmdir", _remove)
    async with sandbox.runtime() as runtime:
        await runtime.apply(
            sandbox.shell("a", "exec sleep 1000", lifetime=Lifetime.BOUND, memory_bytes=LIMIT, grace_seconds=0.1)
        )
        [made] = group.glob("kplane-*-a")
        await sandbox.text(made / "cgroup.procs", lambda text: text == "0")
        state = await sandbox.phase(runtime, "a", Phase.READY)
        shutil.rmtree(made)
        os.kill(state.pid, signal.SIGKILL)
        again = await sandbox.phase(runtime, "a", Phase.READY, restarts=1)
        await sandbox.text(runtime.log_path("a"), lambda text: "Memory is not bounded by a control group" in text)
        assert again.oom_killed is False
        await runtime.delete("a")


COUNTER = find_counter()
DELEGATED = COUNTER.parent if COUNTER is not None and is_delegated(COUNTER.parent) else None
"""The group that this process is in, where it may be divided. Groups that nobody has delegated are left alone."""


@pytest.mark.skipif(DELEGATED is None, reason="the control group of the tests is not delegated to them")
async def test_the_kernel_ends_what_takes_more_and_no_other_and_nothing_is_left(sandbox, eventually: Callable) -> None:
    def hungry(name: str) -> Component:
        return Component(
            name=name,
            program=sys.executable,
            args=("-c", HUNGRY),
            lifetime=Lifetime.BOUND,
            memory_bytes=LIMIT,
        )

    async with sandbox.runtime() as runtime:
        await runtime.apply(sandbox.shell("modest", "exec sleep 1000", lifetime=Lifetime.BOUND, memory_bytes=LIMIT))
        modest = await sandbox.phase(runtime, "modest", Phase.READY)
        await runtime.apply(hungry("hungry"))
        killed = await eventually(lambda: runtime.state("hungry"), lambda state: state.oom_killed, timeout=60.0)
        assert killed.exit_code == -signal.SIGKILL
        assert (runtime.state("modest").pid, runtime.state("modest").restarts) == (modest.pid, 0)
        os.kill(modest.pid, signal.SIGKILL)
        await sandbox.phase(runtime, "modest", Phase.READY, restarts=1, oom_killed=False)
        assert len(list(DELEGATED.glob("kplane-*-*"))) == 2
        await runtime.delete("hungry")
    assert not list(DELEGATED.glob("kplane-????????????????-*"))
