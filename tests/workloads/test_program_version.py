"""Versions of programs, read from the output of `--version`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from kplane.workloads import Component, ProcessRuntime, RuntimeFailure
from kplane.workloads.processes import program as module
from kplane.workloads.processes.program import ProgramVersions


def write(directory: Path, script: str, *, name: str = "server") -> Path:
    path = directory / name
    fresh = directory / "fresh"
    fresh.write_text(f"#!/bin/sh\n{script}\n")
    fresh.chmod(0o700)
    fresh.replace(path)
    return path


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("Kubernetes v1.36.3", "1.36.3"),
        ("etcd Version: 3.6.16\nGo Version: go1.24.1", "3.6.16"),
        ("v0.1.2-rc.0", "0.1.2"),
    ],
)
async def test_first_version_in_the_output_is_used(tmp_path: Path, said: str, version: str) -> None:
    write(tmp_path, f'[ "$1" = --version ] && echo "{said}"')
    assert await ProgramVersions([tmp_path]).of("server") == version


async def test_version_is_cached_until_the_program_changes(tmp_path: Path) -> None:
    calls = tmp_path / "asked"
    write(tmp_path, f"echo >> {calls}; echo v1.2.3")
    versions = ProgramVersions([tmp_path])
    assert await asyncio.gather(*(versions.of("server") for _ in range(5))) == ["1.2.3"] * 5
    assert len(calls.read_text().splitlines()) == 1
    write(tmp_path, "echo v1.2.4")
    assert await versions.of("server") == "1.2.4"


async def test_failure_to_read_a_version_raises_and_is_not_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = ProgramVersions([tmp_path])
    with pytest.raises(RuntimeFailure, match="there is no executable program 'server'"):
        await versions.of("server")
    write(tmp_path, "echo nothing to tell")
    with pytest.raises(RuntimeFailure, match="it said 'nothing to tell'"):
        await versions.of("server")
    write(tmp_path, "echo unknown flag >&2; exit 2")
    with pytest.raises(RuntimeFailure, match="unknown flag"):
        await versions.of("server")
    monkeypatch.setattr(module, "_VERSION_SECONDS", 0.2)
    write(tmp_path, "exec sleep 1000")
    with pytest.raises(RuntimeFailure, match=r"had not ended after 0\.2 s"):
        await versions.of("server")
    # A failure is not cached: the next call runs the program again.
    monkeypatch.undo()
    write(tmp_path, "echo v1.2.3")
    assert await versions.of("server") == "1.2.3"


async def test_component_of_another_version_than_program_is_refused(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    write(programs, '[ "$1" = --version ] && echo v1.2.3 || exec sleep 1000')
    async with ProcessRuntime(tmp_path / "state", programs=[programs]) as runtime:
        assert await runtime.version("server") == "1.2.3"
        assert await runtime.lacks("server", version="1.2.3") is None
        component = Component(name="a", program="server", args=(), version="1.2.4")
        with pytest.raises(
            RuntimeFailure, match=r"version 1\.2\.4 cannot be had: server is here in version 1\.2\.3 only"
        ):
            await runtime.apply(component)
        assert runtime.state("a").pid is None
        await runtime.apply(Component(name="a", program="server", args=(), version="1.2.3"))
        pid = runtime.state("a").pid
        # Both descriptions have the same program, so a change of `version` restarts no process.
        await runtime.apply(Component(name="a", program="server", args=()))
        assert runtime.state("a").pid == pid is not None
        os.kill(pid, 0)
        await runtime.delete("a")
