"""When an address has to be forwarded, and what is told if that fails."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.cli.errors import CliError
from kplane.cli.port_forward import forwarded, is_inside


def document(server: str) -> dict[str, Any]:
    return {"clusters": [{"name": "kplane-acme", "cluster": {"server": server}}]}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("https://kube-apiserver.kplane-cp-acme.svc:6443", True),
        ("https://kplane-gateway.kplane-system.svc/clusters/acme/control-plane", True),
        ("https://acme.example.org:6443", False),
        ("https://svc.example.org/clusters/acme/control-plane", False),
        ("https://127.0.0.1:6443", False),
        ("https://[::1]:6443", False),
    ],
)
def test_services_alone_are_inside(server: str, expected: bool) -> None:
    assert is_inside(document(server)) is expected


@pytest.mark.integration
def test_what_kubectl_cannot_forward_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    address = document("https://kube-apiserver.kplane-cp-acme.svc:6443")
    with (
        pytest.raises(CliError, match="failed to forward a port to kube-apiserver"),
        forwarded(address, context="nosuch"),
    ):
        pass
    assert "nosuch" in capfd.readouterr().err
