"""`kplane` on a cluster whose tenants have addresses that are known inside of it alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from e2e.kubectl import Kubectl
from e2e.tenant import Tenant


@pytest.mark.k8s_needs("pods")
def test_a_command_reaches_a_control_plane_from_outside(kubectl: Kubectl, acme: Tenant) -> None:
    command = [sys.executable, "-P", "-m", "kplane.cli.main", "connect", acme.name]
    command += ["--context", kubectl.context] if kubectl.context is not None else []
    command += ["--", kubectl.program, "get", "namespaces", "--output=name"]
    environment = os.environ | {"KUBECONFIG": str(kubectl.kubeconfig)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "namespace/kube-system" in done.stdout.splitlines()
