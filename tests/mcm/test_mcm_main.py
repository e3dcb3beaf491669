"""Messages with which the command ends if it cannot run."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kplane.mcm import main
from kplane.mcm.settings import Settings
from kplane.provider import ProviderError


def refusal(tmp_path: Path, *, kubeconfig: str, listen: str = "127.0.0.1:0") -> str:
    """Run mcm until it ends with status 1. Returns the message of its only log line."""
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    arguments = [f"--kubeconfig={tmp_path}/kubeconfig", f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}"]
    result = subprocess.run(
        [sys.executable, "-m", "kplane.mcm.main", *arguments, f"--listen={listen}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60.0,
        check=False,
    )
    assert result.returncode == 1
    line = json.loads(result.stderr)
    assert line["level"] == "error"
    return str(line["message"])


def test_mcm_exits_with_a_message_for_an_unusable_kubeconfig(tmp_path: Path) -> None:
    assert refusal(tmp_path, kubeconfig="") == "mcm cannot run: the kubeconfig is empty or no YAML mapping"


def test_mcm_exits_with_a_message_for_a_port_in_use(tmp_path: Path, kubeconfig: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"cannot listen on {listen} (--listen): " in refusal(tmp_path, kubeconfig=kubeconfig, listen=listen)


@pytest.mark.parametrize(("version", "said"), [(0, 1), (1, 0)])
async def test_kernel_without_landlock_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: int, said: int
) -> None:
    monkeypatch.setattr(main, "landlock_version", lambda: version)
    arguments = [f"--kubeconfig={tmp_path}/none", f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}"]
    with caplog.at_level(logging.WARNING), pytest.raises(ProviderError):
        await main.run(Settings.parse(arguments), until=asyncio.Event())
    assert caplog.text.count("this kernel offers no Landlock: an instance can read the keys of all") == said
