"""Stand-ins for kind, kubectl and the programs of embedded clusters, for tests of the pytest plugin."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from kplane.binaries.upstreams import ETCD, KUBERNETES

SETTINGS = (
    "K8S_ALLOWED_CONTEXTS",
    "KIND_CLUSTER",
    "KIND_CONFIG",
    "KIND_KEEP",
    "KIND_NODE_IMAGE",
    "KUBECONFIG",
    "USE_EXISTING_CLUSTER",
)

# Each stand-in records its calls. The stand-in of kind stores its clusters in a file.
KIND = """
case "$1 $2" in
  "get clusters") cat "$0.clusters" ;;
  "create cluster") echo "${3#--name=}" >> "$0.clusters" ;;
  "get kubeconfig") echo "kubeconfig of ${3#--name=}" ;;
  "delete cluster") : > "$0.clusters" ;;
esac
"""
KUBECTL = """
case "$*" in
  "config current-context") echo staging ;;
  "config view"*) echo "kubeconfig of staging" ;;
  *"get configmap"*) echo configmap/kube-root-ca.crt ;;
  *"get nodes"*) echo "True False" ;;
  *"get pods -A -o=json") cat "$0.pods" ;;
  *nonsense*) echo "on output"; echo "no such thing" >&2; exit 3 ;;
  *) echo "kubectl $*" ;;
esac
"""


@dataclass(frozen=True)
class StandIns:
    """Stand-in programs in a directory that is first in PATH and is KPLANE_BINARIES_DIR."""

    directory: Path

    def write(self, program: str, script: str = "") -> Path:
        file = self.directory / program
        file.write_text(f'#!/bin/sh\necho "$*" >> "$0.calls"\n{script}')
        file.chmod(0o755)
        return file

    def calls(self, program: str) -> list[str]:
        file = self.directory / f"{program}.calls"
        return file.read_text().splitlines() if file.exists() else []

    def write_kubectl(self, *, pods: str = '{"items": []}') -> Path:
        (self.directory / "kubectl.pods").write_text(pods)
        return self.write("kubectl", KUBECTL)

    def write_kind(self, *clusters: str) -> Path:
        (self.directory / "kind.clusters").write_text("".join(f"{name}\n" for name in clusters))
        return self.write("kind", KIND)

    def clusters(self) -> list[str]:
        return (self.directory / "kind.clusters").read_text().split()

    def write_kind_that_hangs(self) -> Path:
        """Write a kind whose `create cluster` lists the cluster and then hangs."""
        (self.directory / "kind.clusters").touch()
        hangs = '[ "$1" != create ] || { echo "${3#--name=}" >> "$0.clusters"; exec sleep 600; }'
        return self.write("kind", f"{hangs}\n{KIND}")

    def write_programs_of_local(self) -> None:
        for program in (*KUBERNETES.programs, *ETCD.programs):
            self.write(program)


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIns:
    """An environment without cluster settings, on a machine with only the stand-in programs of the test."""
    directory = tmp_path / "stand-ins"
    directory.mkdir()
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KPLANE_BINARIES_DIR", str(directory))
    monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")
    return StandIns(directory)
