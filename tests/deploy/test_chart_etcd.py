"""A real etcd with the arguments of the chart and the certificates of the operator."""

from __future__ import annotations

import datetime as dt
import http.client
import ssl
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kplane.controlplane_operator.shared_etcd.certificates import (
    authority_of,
    create_credentials,
    renew_server,
    server_hosts,
)
from kplane.data import MAX_REQUEST_BYTES
from kplane.pki.primitives import create_authority, issue_client

from .conftest import Chart, end

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Member:
    """Ports of a member of etcd, and the files of the member and its clients."""

    client_port: int
    peer_port: int
    files: Path
    etcdctl: Path

    def ctl(self, *args: str, certificate: str = "client") -> str:
        files = [f"--cacert={self.files}/ca.crt"]
        if certificate:
            files += [f"--cert={self.files}/{certificate}.crt", f"--key={self.files}/{certificate}.key"]
        command = [str(self.etcdctl), f"--endpoints=https://localhost:{self.client_port}", *files]
        process = subprocess.run([*command, *args], capture_output=True, text=True, check=False)
        return process.stdout + process.stderr

    def members(self, *, certificate: str) -> str:
        """Request the members as another member does. Return the response or the error."""
        context = ssl.create_default_context(cafile=self.files / "ca.crt")
        context.load_cert_chain(self.files / f"{certificate}.crt", self.files / f"{certificate}.key")
        connection = http.client.HTTPSConnection("localhost", self.peer_port, timeout=60, context=context)
        try:
            connection.request("GET", "/members")
            return connection.getresponse().read().decode()
        except OSError as error:
            return f"refused: {error}"
        finally:
            connection.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Entries of both Secrets of the operator, and a client certificate of a foreign authority."""
    credentials = create_credentials("kplane-etcd")
    authority = authority_of(credentials)
    hosts = server_hosts("kplane-etcd", namespace="kplane-system")
    server = renew_server({}, authority=authority, hosts=hosts, now=dt.datetime.now(dt.UTC))
    stranger = issue_client(create_authority("stranger"), user="root")
    foreign = {"stranger.crt": stranger.certificate, "stranger.key": stranger.key}
    tenant = issue_client(authority, user="cp-tenant")
    tenants = {"tenant.crt": tenant.certificate, "tenant.key": tenant.key}
    for name, content in {**credentials, **server, **foreign, **tenants}.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.fixture
def member(chart: Any, binaries: Any, files: Path, hold_port: Callable[[], int]) -> Iterator[Member]:
    (container,) = chart.render().pod_templates()["StatefulSet/kplane-etcd"]["spec"]["containers"]
    client, peer, metrics = (hold_port() for _ in range(3))
    # Paths and addresses of the pod become paths and addresses of this machine. Other arguments stay.
    replacements = {
        "$(POD_NAME)": "kplane-etcd-0",
        "/var/lib/etcd": str(files / "volume"),
        "/etc/etcd": str(files),
        "https://0.0.0.0:2379": f"https://127.0.0.1:{client}",
        "https://0.0.0.0:2380": f"https://127.0.0.1:{peer}",
        "http://0.0.0.0:2381": f"http://127.0.0.1:{metrics}",
    }
    arguments = container["args"]
    for original, place in replacements.items():
        arguments = [argument.replace(original, place) for argument in arguments]
    (files / "volume").mkdir()
    process = subprocess.Popen([str(binaries.path("etcd")), *arguments])
    yield Member(client, peer, files, binaries.path("etcdctl"))
    end(process)


def test_etcd_flags_set_the_maximum_request_size(chart: Chart) -> None:
    (container,) = chart.render().pod_templates()["StatefulSet/kplane-etcd"]["spec"]["containers"]
    assert f"--max-request-bytes={MAX_REQUEST_BYTES}" in container["args"]
    # A member that joins later reads a configuration file.
    joins = chart.directory / "templates" / "etcd" / "join.yaml"
    assert f"max-request-bytes: {MAX_REQUEST_BYTES}\n" in joins.read_text()


async def test_etcd_accepts_only_certificates_of_its_authority(member: Member, eventually: Any) -> None:
    """The operator has such a certificate. Requests without it, or with a foreign one, fail."""
    await eventually(lambda: member.ctl("endpoint", "health"), lambda told: "is healthy" in told, timeout=120)
    assert member.ctl("put", "key", "value") == "OK\n"
    for stranger in ("", "stranger"):
        refused = member.ctl("get", "key", "--command-timeout=2s", "--dial-timeout=2s", certificate=stranger)
        assert "value" not in refused
        assert "Error" in refused
    # A tenant's certificate has the same authority, and the peer port refuses it.
    assert "kplane-etcd-0" in member.members(certificate="server")
    assert member.members(certificate="tenant").startswith("refused: ")
    # The member advertises the name of its pod.
    assert "https://kplane-etcd-0.kplane-etcd-peers.kplane-system.svc:2380" in member.ctl("member", "list")
