"""`kplane init` and `kplane upgrade` against a real API server, by the real helm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kplane.binaries.programs import RUNTIME_PROGRAMS, resolve
from kplane.cli.installation import CHART
from kplane.embedded.daemon import start_cluster
from kplane.embedded.handle import Handle

pytestmark = pytest.mark.integration

PROGRAMS = ("operator", "mcm", "gateway")

Kplane = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def bare_cluster() -> Iterator[Handle]:
    """A cluster without kplane that runs no Pods, so installed programs never start."""
    with start_cluster(resolve(programs=RUNTIME_PROGRAMS), operators=False, manifests=False) as handle:
        yield handle


@pytest.fixture
def kplane(bare_cluster: Handle, tmp_path: Path) -> Kplane:
    def run(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"KUBECONFIG": str(bare_cluster.admin_kubeconfig), "HELM_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-m", "kplane.cli.main", *args]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == code, (args, result.stdout, result.stderr)
        return result

    return run


def test_chart_is_the_chart_of_the_repository() -> None:
    assert (CHART / "Chart.yaml").samefile(Path(__file__).parents[2] / "deploy/chart/kplane/Chart.yaml")


def test_init_installs_once_and_upgrade_needs_installation(
    kplane: Kplane, bare_cluster: Handle, tmp_path: Path
) -> None:
    kubectl = [str(bare_cluster.kubectl_program), f"--kubeconfig={bare_cluster.admin_kubeconfig}"]

    def images() -> dict[str, str]:
        command = [*kubectl, "get", "deployments", "-n", "kplane-system", "-o", "json"]
        deployments = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)["items"]
        return {
            deployment["metadata"]["name"]: deployment["spec"]["template"]["spec"]["containers"][0]["image"]
            for deployment in deployments
        }

    assert "kplane init" in kplane("upgrade", code=1).stderr
    assert "operator.image.repository" in kplane("init", code=1).stderr
    values = tmp_path / "images.yaml"
    programs = {name: {"image": {"repository": f"registry.example.org/kplane-{name}"}} for name in PROGRAMS}
    values.write_text(json.dumps(programs))
    kplane("init", "--no-wait", "-f", str(values), "--set", "operator.image.tag=two")
    assert images()["kplane-operator"] == "registry.example.org/kplane-operator:two"
    assert "kplane upgrade" in kplane("init", code=1).stderr
    assert "helm upgrade ended with status 1" in kplane("upgrade", "--no-wait", "--set", "nosuch=1", code=1).stderr
