"""Starts kplane's gateway in front of control planes: on this machine, or on a cluster that runs Pods."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.certificates import make_certificate
from e2e.installation import NAMESPACE, ROOT, Helm, gateway_image
from e2e.kubectl import Kubectl
from e2e.waiting import eventually

__all__ = ["Gateway", "as_pods", "as_processes"]

_SECRETS: Final = "kplane-gateway"
_CERTIFICATE: Final = "e2e-gateway"
_START_SECONDS: Final = 240.0
_STOP_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """A running gateway, and its management cluster."""

    kubectl: Kubectl
    """kubectl as administrator of the management cluster."""
    restart: Callable[[], None]
    """Restarts the gateway: rolls out its Pods again, or kills Envoy (-9). Returns after the restart."""


@contextlib.contextmanager
def as_processes() -> Iterator[Gateway]:
    """Run an embedded cluster with a gateway, besides the cluster of the suite.

    Raises AssertionError with the log of the embedded cluster if its start or its stop fails.
    """
    with tempfile.TemporaryDirectory(prefix="kplane-e2e-") as name:
        directory = Path(name)
        command = [sys.executable, "-P", "-m", "kplane.embedded", f"--directory={directory}", "--gateway", "--no-fsync"]
        with (directory / "daemon.log").open("wb") as log:
            running = subprocess.Popen(
                [*command, "--until-stdin-closes"], cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert running.stdin is not None
        try:
            ready = _wait_ready(running, directory=directory)
            kubectl = Kubectl(ready["kubectl_program"], Path(ready["admin_kubeconfig"]))
            yield Gateway(kubectl, restart=lambda: _kill_envoy(directory))
        finally:
            running.stdin.close()
            status = running.wait(_STOP_SECONDS)
        assert status == 0, f"failed to stop the embedded cluster: {(directory / 'daemon.log').read_text()}"


def _wait_ready(running: subprocess.Popen[bytes], *, directory: Path) -> dict[str, Any]:
    file, deadline = directory / "ready.json", time.monotonic() + _START_SECONDS
    while not file.exists():
        failed = running.poll() is not None or time.monotonic() > deadline
        assert not failed, f"failed to start the embedded cluster: {(directory / 'daemon.log').read_text()}"
        time.sleep(0.2)
    handle: dict[str, Any] = json.loads(file.read_text())
    return handle


def _kill_envoy(directory: Path) -> None:
    former = _envoys(directory)
    assert former, "failed to find Envoy"
    for pid in former:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    eventually("another Envoy", lambda: _envoys(directory) - former)


def _envoys(directory: Path) -> set[int]:
    """Return the ids of the Envoy processes that serve. Other processes of Envoy only validate a configuration."""
    pids = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # the process has ended in the meantime
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = any(argument.startswith(str(directory)) for argument in arguments)
                if ours and arguments[0].endswith("/envoy") and "validate" not in arguments:
                    pids.add(int(entry.name))
    return pids


@contextlib.contextmanager
def as_pods(k8s: Any, *, kubectl: Kubectl, helm: Helm, directory: Path) -> Iterator[Gateway]:
    """Switch the gateway of the chart on within the context."""
    if "images" in k8s.capabilities:
        k8s.load_images(gateway_image())
    host, port = _make_service(kubectl)
    _make_certificate(kubectl, host=host, directory=directory)
    kubectl("create", "namespace", _SECRETS)
    repository, _, tag = gateway_image().rpartition(":")
    image = f"gateway.image.repository={repository},gateway.image.tag={tag},gateway.image.pullPolicy=IfNotPresent"
    requests = "gateway.resources.envoy.requests.cpu=10m,gateway.resources.controller.requests.cpu=10m"
    address = f"gateway.url=https://{host}:{port},gateway.certificateSecret={_CERTIFICATE}"
    try:
        helm.install("gateway.enabled=true", address, image, requests)
        yield Gateway(kubectl, restart=lambda: _roll_out(kubectl))
    finally:
        helm.install()
        kubectl("delete", "service,secret", _CERTIFICATE, "-n", NAMESPACE)
        kubectl("delete", "namespace", _SECRETS, "--timeout=120s")


def _roll_out(kubectl: Kubectl) -> None:
    deployment = ("deployment/kplane-gateway", "-n", NAMESPACE)
    kubectl("rollout", "restart", *deployment)
    kubectl("rollout", "status", *deployment, "--timeout=300s", timeout_seconds=310)


def _make_service(kubectl: Kubectl) -> tuple[str, int]:
    """Create a Service of type NodePort, and return its host and port.

    The chart needs the URL of the gateway as a value, so the Service comes before the installation.
    """
    selector = {"app.kubernetes.io/instance": "kplane", "app.kubernetes.io/component": "gateway"}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": _CERTIFICATE, "namespace": NAMESPACE},
            "spec": {"type": "NodePort", "selector": selector, "ports": [{"port": 443, "targetPort": "https"}]},
        }
    )
    host = kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}")
    service = kubectl.get("service", _CERTIFICATE, "-n", NAMESPACE)
    return host, service["spec"]["ports"][0]["nodePort"]


def _make_certificate(kubectl: Kubectl, *, host: str, directory: Path) -> None:
    make_certificate(directory, "ca", "-subj", "/CN=e2e", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    leaf = ("-addext", f"subjectAltName=IP:{host}", "-addext", "extendedKeyUsage=serverAuth")
    signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "basicConstraints=critical,CA:FALSE")
    certificate, key = make_certificate(directory, "gateway", "-subj", f"/CN={host}", *signed, *leaf)
    files = {"ca.crt": directory / "ca.crt", "tls.crt": certificate, "tls.key": key}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": _CERTIFICATE, "namespace": NAMESPACE},
            "stringData": {name: file.read_text() for name, file in files.items()},
        }
    )
