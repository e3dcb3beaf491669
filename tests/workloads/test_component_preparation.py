"""Data that a command creates before the first start, completely or not at all, in both runtimes."""

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


async def test_process_runtime_prepares_data_once(tmp_path: Path) -> None:
    directory, etcd = ComponentDirectory(tmp_path / "etcd"), component(tmp_path)
    (tmp_path / "runs.fails").touch()
    for _ in range(2):
        with pytest.raises(ProgramFailed):
            await prepare_data(etcd, directory=directory, programs=[tmp_path])
    assert list(directory.data.iterdir()) == []
    (tmp_path / "runs.fails").unlink()
    for _ in range(2):
        await prepare_data(etcd, directory=directory, programs=[tmp_path])
    assert (directory.data / "made").read_bytes() == b"content"
    assert sorted(path.name for path in directory.path.iterdir()) == ["data", "files"]
    assert runs(tmp_path) == 3


def test_init_container_prepares_data_once(tmp_path: Path) -> None:
    """The shell of this machine runs the command of the init container."""
    settings = PodSettings(images={"etcd": Image("etcd:1"), "makes": Image("operator:1")}, ports={})
    etcd = component(tmp_path)
    spec = workload(etcd, placement=Placement("a", "etcd"), image=settings.images["etcd"], settings=settings)
    pod = spec["spec"]["template"]["spec"]
    (init_container,) = pod["initContainers"]
    assert init_container["image"] == "operator:1"
    assert init_container["volumeMounts"] == pod["containers"][0]["volumeMounts"]
    assert init_container["securityContext"] == pod["containers"][0]["securityContext"]

    places = {"/var/lib/kplane": str(tmp_path / "volume"), "/etc/kplane": str(tmp_path)}
    command = list(init_container["command"])
    for place, directory in places.items():
        command = [part.replace(place, directory) for part in command]
    command = [str(tmp_path / "makes") if part == "makes" else part for part in command]
    (tmp_path / "empty").write_text("content")
    (tmp_path / "volume").mkdir()
    result = tmp_path / "volume" / "data" / "made"
    (tmp_path / "runs.fails").touch()
    for _ in range(2):
        assert subprocess.run(command).returncode != 0
        assert not result.exists()
    (tmp_path / "runs.fails").unlink()
    for _ in range(2):
        assert subprocess.run(command).returncode == 0
    assert result.read_text() == "content"
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["data"]
    assert (tmp_path / "volume" / "data").stat().st_mode & 0o777 == 0o700
    assert runs(tmp_path) == 3


def test_pod_without_preparation_has_no_init_container(tmp_path: Path) -> None:
    settings = PodSettings(images={"etcd": Image("etcd:1")}, ports={})
    plain = dataclasses.replace(component(tmp_path), prepare=None)
    spec = workload(plain, placement=Placement("a", "etcd"), image=settings.images["etcd"], settings=settings)
    assert "initContainers" not in spec["spec"]["template"]["spec"]
