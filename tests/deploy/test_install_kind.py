"""`make install-kind`, with fake programs that record their calls."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RECORD = """#!/bin/sh
echo "$(basename "$0") $*" >> "{calls}"
{answer}
"""
ANSWERS = {"kubectl": "echo {context}", "docker": "echo sha256:0123", "helm": "", "kind": "", "submake": ""}


@dataclass(frozen=True)
class Machine:
    """Machine with a checkout and its virtual environment."""

    home: Path

    def install(self, *, context: str) -> subprocess.CompletedProcess[str]:
        programs = self.home / "bin"
        for name, answer in {**ANSWERS, "run": f"echo {programs}"}.items():
            text = RECORD.format(calls=self.home / "calls", answer=answer.format(context=context))
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        settings = [f"VENV={self.home}", f"RUN={programs}/run", f"SUBMAKE={programs}/submake", "IMAGE_TAG=t1"]
        return subprocess.run(
            ["make", "-C", str(ROOT), "install-kind", *settings],
            env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(self.home)},
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self, program: str) -> list[list[str]]:
        words = [line.split() for line in (self.home / "calls").read_text().splitlines()]
        return [arguments for name, *arguments in words if name == program]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "bin").mkdir()
    (tmp_path / ".stamp").touch()
    return Machine(tmp_path)


def test_make_target_builds_loads_and_installs_images(machine: Machine) -> None:
    process = machine.install(context="kind-mine")

    assert process.returncode == 0, process.stderr
    assert machine.calls("submake") == [["images"]]
    images = [f"kplane-{name}:t1" for name in ("operator", "mcm", "gateway", "etcd")]
    assert machine.calls("kind") == [["load", "docker-image", "--name", "mine", *images]]
    (helm,) = machine.calls("helm")
    assert helm[:4] == ["upgrade", "--install", "kplane", "deploy/chart/kplane"]
    assert {"operator.image.tag=t1", "mcm.image.tag=t1", "etcd.image=kplane-etcd:t1"} <= set(helm)
    # The annotation changes with the image, so an upgrade with the same tag replaces the pods.
    assert "operator.podAnnotations.kplane-image=sha256:0123" in helm
    assert "--wait" in helm


@pytest.mark.parametrize("context", ["production", ""])
def test_make_target_refuses_a_context_other_than_kind(machine: Machine, context: str) -> None:
    process = machine.install(context=context)

    assert process.returncode != 0
    assert (
        f"the current context is {context or 'not set'}, and not one of kind: run kind create cluster" in process.stderr
    )
    assert machine.calls("submake") == machine.calls("kind") == machine.calls("helm") == []
