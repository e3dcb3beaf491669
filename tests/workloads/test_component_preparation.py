"""Data that a command makes before the first start: all of them or nothing, by both runtimes."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from kplane.workloads import DATA, FILES, Component, File, Preparation, ProgramFailed
from kplane.workloads.pods.objects import workload
from kplane.workloads.pods.settings import Image, Placement, PodSettings
from kplane.workloads.processes.directory import ComponentDirectory
from kplane.workloads.processes.preparation import prepare_data

MAKES = """#!/bin/sh
mkdir "$2"
cp "$1" "$2/made"
echo again >> "$3"
[ ! -e "$3.fails" ]
"""


def component(tmp_path: Path) -> Component:
    program = tmp_path / "makes"
    program.write_text(MAKES)
    program.chmod(0o755)
    return Component(
        name="etcd",
        program="etcd",
        args=(),
        data=True,
        files={"empty": File(b"content")},
        prepare=Preparation(
            program="makes", args=(f"{FILES}/empty", f"{DATA}", str(tmp_path / "runs")), creates="made"
        ),
    )


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text().splitlines())


async def test_a_process_gets_them_once(tmp_path: Path) -> None:
    directory, described = ComponentDirectory(tmp_path / "etcd"), component(tmp_path)
    (tmp_path / "runs.fails").touch()
    for _ in range(2):
        with pytest.raises(ProgramFailed):
            await prepare_data(described, directory=directory, programs=[tmp_path])
    assert list(directory.data.iterdir()) == []
    (tmp_path / "runs.fails").unlink()
    for _ in range(2):
        await prepare_data(described, directory=directory, programs=[tmp_path])
    assert (directory.data / "made").read_bytes() == b"content"
    assert sorted(path.name for path in directory.path.iterdir()) == ["data", "files"]
    assert runs(tmp_path) == 3


def test_a_pod_gets_them_once(tmp_path: Path) -> None:
    """By the command of its first container, run here by the shell of this machine."""
    settings = PodSettings(images={"etcd": Image("etcd:1"), "makes": Image("operator:1")}, ports={})
    described = component(tmp_path)
    spec = workload(described, placement=Placement("a", "etcd"), image=settings.images["etcd"], settings=settings)
    pod = spec["spec"]["template"]["spec"]
    (first,) = pod["initContainers"]
    assert first["image"] == "operator:1"
    assert first["volumeMounts"] == pod["containers"][0]["volumeMounts"]
    assert first["securityContext"] == pod["containers"][0]["securityContext"]

    places = {"/var/lib/kplane": str(tmp_path / "volume"), "/etc/kplane": str(tmp_path)}
    command = list(first["command"])
    for place, here in places.items():
        command = [part.replace(place, here) for part in command]
    command = [str(tmp_path / "makes") if part == "makes" else part for part in command]
    (tmp_path / "empty").write_text("content")
    (tmp_path / "volume").mkdir()
    made = tmp_path / "volume" / "data" / "made"
    (tmp_path / "runs.fails").touch()
    for _ in range(2):
        assert subprocess.run(command).returncode != 0
        assert not made.exists()
    (tmp_path / "runs.fails").unlink()
    for _ in range(2):
        assert subprocess.run(command).returncode == 0
    assert made.read_text() == "content"
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["data"]
    assert (tmp_path / "volume" / "data").stat().st_mode & 0o777 == 0o700
    assert runs(tmp_path) == 3


def test_a_pod_without_it_has_no_such_container(tmp_path: Path) -> None:
    settings = PodSettings(images={"etcd": Image("etcd:1")}, ports={})
    plain = dataclasses.replace(component(tmp_path), prepare=None)
    spec = workload(plain, placement=Placement("a", "etcd"), image=settings.images["etcd"], settings=settings)
    assert "initContainers" not in spec["spec"]["template"]["spec"]
