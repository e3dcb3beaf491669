"""Runs the example of a multicluster reconciler on the kind cluster of the suite."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from e2e.kubectl import Kubectl

pytestmark = pytest.mark.k8s_needs("pods", "images")

_ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def example(k8s: Any, reader_environment: Mapping[str, str], tmp_path: Path) -> Iterator[None]:
    """Run `python examples/configmaps.py kind`, and check its exit status after SIGTERM."""
    command = [sys.executable, "examples/configmaps.py", "kind", k8s.kind.cluster]
    log = tmp_path / "log"
    with log.open("wb") as errors:
        process = subprocess.Popen(command, cwd=_ROOT, env=dict(reader_environment), stderr=errors)
    try:
        yield
    finally:
        process.terminate()
        try:
            status = process.wait(120)
        finally:
            process.kill()  # no effect if it has ended
    assert status == 0, log.read_text()


def test_example_annotates_config_map_with_kind_cluster_name(k8s: Any, kubectl: Kubectl, example: None) -> None:
    kubectl("create", "configmap", "stamped", "--namespace=default")
    try:
        kubectl("label", "configmap", "stamped", "demo=stamp", "--namespace=default")
        condition = f"--for=jsonpath={{.metadata.annotations.demo/cluster}}={k8s.kind.cluster}"
        kubectl("wait", "configmap/stamped", condition, "--namespace=default", "--timeout=120s")
    finally:
        kubectl("delete", "configmap", "stamped", "--namespace=default")
