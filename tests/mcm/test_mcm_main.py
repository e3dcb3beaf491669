"""How the command ends where it cannot do its work."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from mcm.main import main

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: t}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
current-context: a
"""


def run(tmp_path: Path, *, kubeconfig: str, listen: str = "127.0.0.1:0") -> int:
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    arguments = [f"--kubeconfig={tmp_path}/kubeconfig", f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, f"--listen={listen}"])
    return int(str(ended.value.code))


def test_a_kubeconfig_that_cannot_be_used_ends_it_with_a_sentence(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, kubeconfig="") == 1
    line = json.loads(capfd.readouterr().err)
    assert line["level"] == "error"
    assert line["message"] == "mcm cannot run: the kubeconfig is empty or no YAML mapping"


def test_a_port_that_is_taken_ends_it_with_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run(tmp_path, kubeconfig=KUBECONFIG, listen=f"127.0.0.1:{port}") == 1
    assert f"cannot listen on 127.0.0.1:{port} (--listen)" in capfd.readouterr().err
