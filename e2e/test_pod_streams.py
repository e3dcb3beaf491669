"""The client's streams to pods, against a real kubelet: a log that grows, a command, and ports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from e2e.installation import ROOT
from e2e.kubectl import Kubectl, Object
from e2e.page_pod import PAGE_PORT, page_pod

pytestmark = pytest.mark.k8s_needs("pods", "images")

_NAME: Final = "pod-streams"
_SERVICE_PORT: Final = 80
_PROGRAM: Final = f"""
cd /srv && echo served > index.html && exec python3 -u -m http.server {PAGE_PORT} 2>&1
"""
"""Serves a page, and logs each request."""


@pytest.fixture(scope="module")
def pod(installation: None, kubectl: Kubectl) -> Iterator[str]:
    """A pod that serves a page, behind a Service that names its port."""
    kubectl.apply(_pod(), _service())
    try:
        kubectl("wait", f"pod/{_NAME}", "--namespace=default", "--for=condition=Ready", "--timeout=120s")
        yield _NAME
    finally:
        kubectl("delete", f"pod/{_NAME}", f"service/{_NAME}", "--namespace=default", "--ignore-not-found")


def _pod() -> Object:
    ports = [{"name": "web", "containerPort": PAGE_PORT}]
    return page_pod(_NAME, _PROGRAM, labels={"app": _NAME}, ports=ports)


def _service() -> Object:
    spec = {"selector": {"app": _NAME}, "ports": [{"port": _SERVICE_PORT, "targetPort": "web"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": _NAME, "namespace": "default"}, "spec": spec}


@pytest.mark.parametrize(
    "options",
    [(f"--port={PAGE_PORT}",), (f"--port={_SERVICE_PORT}", f"--service={_NAME}")],
    ids=["pod", "service"],
)
def test_example_streams_log_command_and_port_forward(kubectl: Kubectl, pod: str, options: Sequence[str]) -> None:
    command = [sys.executable, "examples/pods.py", pod, *options]
    command += ["--context", kubectl.context] if kubectl.context is not None else []
    environment = os.environ | {"KUBECONFIG": str(kubectl.kubeconfig)}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    # A connection that cannot be forwarded would print a warning.
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert [line for line in lines if not line.startswith("log: ")] == [
        "stdout: there and back",
        "stderr: complaint",
        "exit code: 3",
        *["answer: 200 served"] * 3,
    ]
    (*_, last) = (line for line in lines if line.startswith("log: "))
    assert re.search(r'"GET /\?[0-9a-f]{8} HTTP/1\.1" 200', last)
