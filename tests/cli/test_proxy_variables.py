"""Message of a command whose management cluster does not answer, while the environment names a proxy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kplane.cli.errors import ExitCode
from kplane.cli.main import app

_SENTENCE = "HTTPS_PROXY is set and has no effect; name a proxy by proxy-url in the kubeconfig that needs it"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "KPLANE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_port: Callable[[], int]) -> Callable[..., None]:
    """Write a kubeconfig whose server does not listen."""

    def write(**cluster: str) -> None:
        server = f"https://127.0.0.1:{hold_port()}"
        document = {
            "clusters": [{"name": "x", "cluster": {"server": server, **cluster}}],
            "users": [{"name": "x", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "current-context": "x",
        }
        (tmp_path / "config").write_text(json.dumps(document))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))

    return write


def error_of(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == ExitCode.UNREACHABLE, result.output
    return result.stderr


def test_unreachable_cluster_error_names_ignored_proxy_variable(
    unreachable: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    unreachable()
    assert "has no effect" not in error_of("list")
    monkeypatch.setenv("HTTPS_PROXY", "http://user:password@127.0.0.1:3128")
    error = error_of("list")
    assert error.rstrip().endswith(f"; {_SENTENCE}")
    assert "password" not in error


def test_unreachable_cluster_error_of_used_proxy_names_no_variable(
    unreachable: Callable[..., None], monkeypatch: pytest.MonkeyPatch, hold_port: Callable[[], int]
) -> None:
    unreachable(**{"proxy-url": f"http://127.0.0.1:{hold_port()}"})
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    assert "has no effect" not in error_of("list")
