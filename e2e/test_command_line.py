"""`kplane connect` on a cluster whose control planes have addresses that only its own network resolves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from e2e.kubectl import Kubectl
from e2e.tenant import Tenant


@pytest.mark.k8s_needs("pods")
def test_connect_runs_command_on_control_plane_from_outside(kubectl: Kubectl, acme: Tenant) -> None:
    command = [sys.executable, "-P", "-m", "kplane.cli.main", "connect", acme.name]
    command += ["--context", kubectl.context] if kubectl.context is not None else []
    command += ["--", kubectl.program, "get", "namespaces", "--output=name"]
    environment = os.environ | {"KUBECONFIG": str(kubectl.kubeconfig)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert "namespace/kube-system" in result.stdout.splitlines()
