"""The gateway as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kplane.embedded.credentials import SERVICE_ACCOUNT_GROUPS
from kplane.embedded.handle import Handle
from kplane.embedded.python_path import python_path
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import create_authority, issue_client, issue_serving
from kplane.provider import ClusterConfig
from kplane.workloads import end_processes, find_processes

__all__ = ["Process", "gateway_kubeconfig", "gateway_process", "write_certificate"]

_USER = "system:serviceaccount:kplane-system:kplane-gateway"


@dataclass
class Process:
    state: Path
    command: list[str]
    url: str
    port: int
    directory: Path
    ca: bytes
    running: subprocess.Popen[bytes] | None = None

    def start(self, **changes: str) -> None:
        command = [*self.command, *(f"--{name}={value}" for name, value in changes.items())]
        with (self.directory / "log").open("ab") as log:
            environment = os.environ | {"PYTHONPATH": python_path()}
            self.running = subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.running is not None
        self.running.send_signal(number)
        return self.running.wait(timeout=60)

    @property
    def envoy(self) -> int | None:
        return next(iter(find_processes(self.state)), None)

    async def ask(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(self.url + path) as answer:
            return answer.status, await answer.text()

    async def ready(self) -> bool:
        return (await self.ask("/readyz"))[0] == 200

    def config(self, path: str, **identity: Any) -> ClusterConfig:
        server = f"https://127.0.0.1:{self.port}/clusters/{path}/control-plane"
        return ClusterConfig(server=server, ca_data=self.ca, **identity)


def write_certificate(directory: Path) -> bytes:
    """Write a serving certificate of a new CA. Returns the certificate of the CA."""
    authority = create_authority("gateway")
    pair = issue_serving(authority, common_name="gateway", hosts=["127.0.0.1"])
    (directory / "tls.key").write_bytes(pair.key)
    (directory / "tls.crt").write_bytes(pair.certificate)
    return authority.certificate


def gateway_kubeconfig(cluster: Handle) -> bytes:
    """Return the kubeconfig of the ServiceAccount of the gateway, with only the permissions of deploy/rbac."""
    files = (cluster.directory / "credentials" / "authorities").iterdir()
    authorities = TenantAuthorities.from_secret({file.name: file.read_bytes() for file in files})
    client = issue_client(authorities.client, user=_USER, groups=SERVICE_ACCOUNT_GROUPS)
    return render_kubeconfig(server=cluster.server, ca=authorities.serving.certificate, user=_USER, client=client)


@contextlib.asynccontextmanager
async def gateway_process(
    cluster: Handle, directory: Path, *, envoy: Path, hold_port: Callable[[], int]
) -> AsyncIterator[Process]:
    """Yield a gateway of a management cluster, which the test starts. All its processes are ended at exit."""
    certificates, state, kubeconfig = directory / "certificates", directory / "state", directory / "kubeconfig"
    certificates.mkdir()
    kubeconfig.write_bytes(gateway_kubeconfig(cluster))
    listen, port = hold_port(), hold_port()
    command = [sys.executable, "-m", "kplane.gateway.main", f"--kubeconfig={kubeconfig}", f"--state-dir={state}"]
    command += [f"--envoy={envoy}", f"--certificate-dir={certificates}", f"--serve=127.0.0.1:{port}"]
    command += [f"--listen=127.0.0.1:{listen}", "--workers=1"]
    process = Process(state, command, f"http://127.0.0.1:{listen}", port, directory, write_certificate(certificates))
    try:
        yield process
    finally:
        if process.running is not None and process.running.poll() is None:
            process.end(signal.SIGKILL)
        await end_processes(state, grace_seconds=1.0)
        sys.stdout.write((directory / "log").read_text()[-6000:])
