"""Runs a user's own API server with an etcd, as processes or as a Pod. kplane does not manage this API server."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from e2e.certificates import make_certificate
from e2e.installation import chart_values, images
from e2e.kubectl import Object
from e2e.platform import Platform

__all__ = ["UserApiServer", "api_server_as_pod", "api_server_as_processes"]

_FILES: Final = "/files"
_DATA: Final = "/data"
_PORT: Final = 6443
_ETCD: Final = "http://127.0.0.1:2379"
_NAMES: Final = ("server.crt", "server.key", "sa.crt", "sa.key", "tokens.csv")
_STOP_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class UserApiServer:
    """Addresses of an API server, and the token of its administrator."""

    internal: str
    """URL for programs in the management cluster."""
    external: str
    """URL for users."""
    ca: bytes
    token: str


@contextlib.contextmanager
def api_server_as_processes(platform: Platform) -> Iterator[UserApiServer]:
    """Run etcd and kube-apiserver as processes."""
    token = _write_files(platform, names="IP:127.0.0.1")
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(_held_port()) for _ in range(3)]
        etcd, peers = (f"http://127.0.0.1:{port}" for port in ports[:2])
        data = platform.directory / "etcd"
        _run(
            stack,
            platform,
            "etcd",
            *_etcd_args(etcd, data=str(data)),
            f"--listen-peer-urls={peers}",
            "--unsafe-no-fsync",
        )
        args = _api_server_args(ports[2], etcd=etcd, files=str(platform.directory))
        _run(stack, platform, "kube-apiserver", *args, "--bind-address=127.0.0.1")
        url = f"https://127.0.0.1:{ports[2]}"
        yield UserApiServer(url, url, (platform.directory / "server.crt").read_bytes(), token)


@contextlib.contextmanager
def api_server_as_pod(platform: Platform) -> Iterator[UserApiServer]:
    """Run etcd and kube-apiserver as a Pod in its own namespace of the management cluster."""
    kubectl, namespace = platform.kubectl, platform.name("api-server")
    host = kubectl("get", "nodes", "-o", "jsonpath={.items[0].status.addresses[?(@.type=='InternalIP')].address}")
    service = f"api-server.{namespace}.svc"
    token = _write_files(platform, names=f"DNS:{service},IP:{host}")
    kubectl("create", "namespace", namespace)
    try:
        data = {name: (platform.directory / name).read_text() for name in _NAMES}
        kubectl.apply(*_objects(namespace, data=data))
        kubectl(
            "wait", "pod/api-server", "-n", namespace, "--for=condition=Ready", "--timeout=180s", timeout_seconds=190
        )
        port = kubectl.get("service", "api-server", "-n", namespace)["spec"]["ports"][0]["nodePort"]
        ca = data["server.crt"].encode()
        yield UserApiServer(f"https://{service}:{_PORT}", f"https://{host}:{port}", ca, token)
    finally:
        kubectl("delete", "namespace", namespace, "--timeout=200s", timeout_seconds=210)


def _write_files(platform: Platform, *, names: str) -> str:
    """Write certificates, keys and tokens into the platform's directory. Returns the administrator's token."""
    subject = ("-subj", "/CN=api-server", "-addext", f"subjectAltName={names}")
    make_certificate(platform.directory, "server", *subject)
    make_certificate(platform.directory, "sa", "-subj", "/CN=service-accounts")
    token = secrets.token_urlsafe(24)
    platform.private_file("tokens.csv", content=f"{token},owner,owner,system:masters\n".encode())
    return token


def _etcd_args(url: str, *, data: str) -> list[str]:
    return [f"--data-dir={data}", f"--listen-client-urls={url}", f"--advertise-client-urls={url}"]


def _api_server_args(port: int, *, etcd: str, files: str) -> list[str]:
    return [
        f"--secure-port={port}",
        f"--etcd-servers={etcd}",
        f"--tls-cert-file={files}/server.crt",
        f"--tls-private-key-file={files}/server.key",
        f"--token-auth-file={files}/tokens.csv",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://api-server.example",
        f"--service-account-key-file={files}/sa.crt",
        f"--service-account-signing-key-file={files}/sa.key",
        "--service-cluster-ip-range=10.64.0.0/16",
        "--endpoint-reconciler-type=none",
    ]


@contextlib.contextmanager
def _held_port() -> Iterator[int]:
    """Reserve a port within the context, for a server that sets SO_REUSEADDR, as servers in Go do."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        yield reservation.getsockname()[1]


def _run(stack: contextlib.ExitStack, platform: Platform, program: str, *args: str) -> None:
    """Run a program until the stack is closed. The output goes to a file in the platform's directory."""
    log = stack.enter_context((platform.directory / f"{program}.log").open("wb"))
    process = subprocess.Popen([_find(program), *args], stdout=log, stderr=log)

    def end() -> None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    stack.callback(end)


def _find(program: str) -> Path:
    command = [sys.executable, "-P", "-m", "kplane.binaries", program]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return Path(result.stdout.strip().splitlines()[-1]) / program


def _objects(namespace: str, *, data: dict[str, str]) -> list[Object]:
    metadata = {"name": "api-server", "namespace": namespace, "labels": {"app": "api-server"}}
    etcd: dict[str, Any] = {
        "name": "etcd",
        "image": images()[2],
        "command": ["etcd", *_etcd_args(_ETCD, data=f"{_DATA}/etcd")],
        "volumeMounts": [{"name": "data", "mountPath": _DATA}],
    }
    api_server: dict[str, Any] = {
        "name": "kube-apiserver",
        "image": chart_values()["controlPlanes"]["kubeApiserverImage"],
        "command": ["kube-apiserver", *_api_server_args(_PORT, etcd=_ETCD, files=_FILES)],
        "volumeMounts": [{"name": "files", "mountPath": _FILES, "readOnly": True}],
        "readinessProbe": {"httpGet": {"scheme": "HTTPS", "path": "/readyz", "port": _PORT}, "periodSeconds": 1},
    }
    volumes = [{"name": "files", "secret": {"secretName": "api-server"}}, {"name": "data", "emptyDir": {}}]
    spec = {"containers": [etcd, api_server], "volumes": volumes, "terminationGracePeriodSeconds": 1}
    ports = [{"port": _PORT, "targetPort": _PORT}]
    service = {"type": "NodePort", "selector": {"app": "api-server"}, "ports": ports}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
    ]
