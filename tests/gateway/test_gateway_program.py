"""The gateway at start: leftovers of a gateway that was killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from kplane.gateway.errors import CertificateInvalid
from kplane.gateway.main import run
from kplane.gateway.program import EnvoyValidator
from kplane.gateway.settings import Settings
from kplane.pki.kubeconfig import render_kubeconfig
from kplane.pki.primitives import issue_client

from .fleet import CLIENT_CA, SERVING_CA


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Directory of Envoy's files, with the leftovers of two validations and a file of another kind."""
    directory = tmp_path / "state" / "envoy"
    directory.mkdir(mode=0o700, parents=True)
    for name in ("candidate-a.json", "candidate-b.json", "bootstrap.json"):
        (directory / name).write_text("{}")
    return directory


def test_validator_removes_leftover_candidates_only(directory: Path) -> None:
    EnvoyValidator(Path("envoy"), directory=directory).remove_leftovers()
    assert [file.name for file in directory.iterdir()] == ["bootstrap.json"]


async def test_gateway_start_removes_leftover_candidates(
    directory: Path, tmp_path: Path, hold_port: Callable[[], int]
) -> None:
    """Candidates contain private keys. This gateway ends soon, since it has no serving certificate."""
    kubeconfig = tmp_path / "kubeconfig"
    user = issue_client(CLIENT_CA, user="gateway")
    kubeconfig.write_bytes(
        render_kubeconfig(server="https://127.0.0.1:1", ca=SERVING_CA.certificate, user="gateway", client=user)
    )
    arguments = [
        f"--kubeconfig={kubeconfig}",
        f"--state-dir={directory.parent}",
        "--no-run-envoy",
        f"--envoy={kubeconfig}",
    ]
    arguments += [f"--certificate-dir={tmp_path}", "--serve=127.0.0.1:8443", f"--listen=127.0.0.1:{hold_port()}"]
    with pytest.raises(CertificateInvalid):
        await run(Settings.parse(arguments), until=asyncio.Event())
    assert list(directory.glob("candidate-*")) == []
