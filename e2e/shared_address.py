"""Runs a user's gateway in front of an API server, as a process or as a Pod."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.certificates import make_certificate
from e2e.installation import images
from e2e.platform import Platform

__all__ = ["SharedAddress", "as_pod", "as_process"]

_PROGRAM: Final = Path(__file__).with_name("gateway.py")
_PORT: Final = 8443
_FILES: Final = "/gateway"


@dataclass(frozen=True, slots=True)
class SharedAddress:
    """Addresses of the gateway, without the path of the tenant, and its CA."""

    internal: str
    """URL for programs in the management cluster."""
    external: str
    """URL for users."""
    ca: bytes


def _certificate(platform: Platform, *, names: str) -> tuple[Path, Path]:
    """Create a self-signed certificate and its key. Returns both paths."""
    return make_certificate(platform.directory, "gateway", "-subj", "/CN=gateway", "-addext", f"subjectAltName={names}")


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """Reserve a port within the context, for a server that sets SO_REUSEADDR, as servers of asyncio do."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


@contextlib.contextmanager
def as_process(platform: Platform, *, path: str, backend: str, ca: bytes) -> Iterator[SharedAddress]:
    """Run the gateway as a process."""
    certificate, key = _certificate(platform, names="IP:127.0.0.1")
    backend_ca = platform.private_file("backend-ca.crt", content=ca)
    with _held_port() as port:
        args = [str(port), str(certificate), str(key), path, backend, str(backend_ca)]
        process = subprocess.Popen([sys.executable, str(_PROGRAM), *args])
        try:
            url = f"https://127.0.0.1:{port}"
            yield SharedAddress(url, url, certificate.read_bytes())
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def as_pod(platform: Platform, *, path: str, backend: str, ca: bytes) -> Iterator[SharedAddress]:
    """Run the gateway as a Pod in its own namespace of the management cluster."""
    kubectl, namespace = platform.kubectl, platform.name("gateway")
    host = kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}")
    service = f"gateway.{namespace}.svc"
    certificate, key = _certificate(platform, names=f"DNS:{service},IP:{host}")
    files = {"gateway.py": _PROGRAM, "server.crt": certificate, "server.key": key}
    data = {name: file.read_text() for name, file in files.items()} | {"ca.crt": ca.decode()}
    args = [str(_PORT), f"{_FILES}/server.crt", f"{_FILES}/server.key", path, backend, f"{_FILES}/ca.crt"]
    kubectl("create", "namespace", namespace)
    try:
        kubectl.apply(*_objects(namespace, data=data, command=["python3", f"{_FILES}/gateway.py", *args]))
        kubectl("wait", "pod/gateway", "-n", namespace, "--for=condition=Ready", "--timeout=120s")
        port = kubectl.get("service", "gateway", "-n", namespace)["spec"]["ports"][0]["nodePort"]
        yield SharedAddress(f"https://{service}:{_PORT}", f"https://{host}:{port}", certificate.read_bytes())
    finally:
        kubectl("delete", "namespace", namespace, "--timeout=200s", timeout_seconds=210)


def _objects(namespace: str, *, data: dict[str, str], command: list[str]) -> list[dict[str, Any]]:
    metadata = {"name": "gateway", "namespace": namespace, "labels": {"app": "gateway"}}
    container = {
        "name": "gateway",
        "image": images()[1],
        "command": command,
        "volumeMounts": [{"name": "files", "mountPath": _FILES, "readOnly": True}],
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 1},
    }
    volume = {"name": "files", "secret": {"secretName": "gateway"}}
    spec = {"containers": [container], "volumes": [volume], "terminationGracePeriodSeconds": 1}
    ports = [{"port": _PORT, "targetPort": _PORT}]
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"type": "NodePort", "selector": {"app": "gateway"}, "ports": ports},
        },
    ]
