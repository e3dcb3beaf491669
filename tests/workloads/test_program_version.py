"""Which version a program is, asked of the program itself."""

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
async def test_the_first_version_that_is_told_counts(tmp_path: Path, said: str, version: str) -> None:
    write(tmp_path, f'[ "$1" = --version ] && echo "{said}"')
    assert await ProgramVersions([tmp_path]).of("server") == version


async def test_a_program_is_asked_once_until_it_is_another(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    write(tmp_path, f"echo >> {asked}; echo v1.2.3")
    versions = ProgramVersions([tmp_path])
    assert await asyncio.gather(*(versions.of("server") for _ in range(5))) == ["1.2.3"] * 5
    assert len(asked.read_text().splitlines()) == 1
    write(tmp_path, "echo v1.2.4")
    assert await versions.of("server") == "1.2.4"


async def test_what_keeps_a_version_from_being_known_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # A failure is no answer: it is asked again.
    monkeypatch.undo()
    write(tmp_path, "echo v1.2.3")
    assert await versions.of("server") == "1.2.3"


async def test_a_process_of_another_version_than_the_program_is_refused(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    write(programs, '[ "$1" = --version ] && echo v1.2.3 || exec sleep 1000')
    async with ProcessRuntime(tmp_path / "state", programs=[programs]) as runtime:
        assert await runtime.version("server") == "1.2.3"
        assert await runtime.lacks("server", version="1.2.3") is None
        wanted = Component(name="a", program="server", args=(), version="1.2.4")
        with pytest.raises(
            RuntimeFailure, match=r"version 1\.2\.4 cannot be had: server is here in version 1\.2\.3 only"
        ):
            await runtime.apply(wanted)
        assert runtime.state("a").pid is None
        await runtime.apply(Component(name="a", program="server", args=(), version="1.2.3"))
        pid = runtime.state("a").pid
        # It is the same program, so that naming its version restarts nothing.
        await runtime.apply(Component(name="a", program="server", args=()))
        assert runtime.state("a").pid == pid is not None
        os.kill(pid, 0)
        await runtime.delete("a")
