"""How the command ends where it cannot do its work."""

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
    """The one line that mcm says before it ends with status 1."""
    (tmp_path / "kubeconfig").write_text(kubeconfig)
    arguments = [f"--kubeconfig={tmp_path}/kubeconfig", f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}"]
    ended = subprocess.run(
        [sys.executable, "-m", "kplane.mcm.main", *arguments, f"--listen={listen}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=60.0,
        check=False,
    )
    assert ended.returncode == 1
    line = json.loads(ended.stderr)
    assert line["level"] == "error"
    return str(line["message"])


def test_a_kubeconfig_that_cannot_be_used_ends_it_with_a_sentence(tmp_path: Path) -> None:
    assert refusal(tmp_path, kubeconfig="") == "mcm cannot run: the kubeconfig is empty or no YAML mapping"


def test_a_port_that_is_taken_ends_it_with_a_sentence(tmp_path: Path, kubeconfig: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f"cannot listen on {listen} (--listen): " in refusal(tmp_path, kubeconfig=kubeconfig, listen=listen)


@pytest.mark.parametrize(("version", "said"), [(0, 1), (1, 0)])
async def test_a_kernel_without_landlock_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: int, said: int
) -> None:
    monkeypatch.setattr(main, "landlock_version", lambda: version)
    nowhere = [f"--kubeconfig={tmp_path}/none", f"--state-dir={tmp_path}/state", f"--programs-dir={tmp_path}"]
    with caplog.at_level(logging.WARNING), pytest.raises(ProviderError):
        await main.run(Settings.parse(nowhere), until=asyncio.Event())
    assert caplog.text.count("this kernel offers no Landlock: an instance can read the keys of all") == said
