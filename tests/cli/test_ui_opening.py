"""The browser is started without the key of the page in its arguments."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from kplane.cli.main import app

ADDRESS = "http://127.0.0.1:4711/the-key/"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str, int, int]]:
    """Starts of the browser: path, text, and the modes of the file and of its directory."""
    entry = {
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(entry))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    launches = []

    def launch(target: str) -> int:
        path = Path(target)
        modes = (stat.S_IMODE(file.stat().st_mode) for file in (path, path.parent))
        launches.append((target, path.read_text(), *modes))
        return 0

    async def serve(_: Any, *, port: int, ready: Callable[[str], None]) -> None:
        ready(ADDRESS)

    monkeypatch.setattr("typer.launch", launch)
    monkeypatch.setattr("kplane.cli.ui.server.serve", serve)
    return launches


def test_browser_gets_key_in_private_temporary_file(launched: list[tuple[str, str, int, int]]) -> None:
    result = CliRunner().invoke(app, ["ui"])
    assert result.exit_code == 0, result.output
    ((path, text, mode, above),) = launched
    assert "the-key" not in path
    assert f'content="0; url={ADDRESS}"' in text
    assert (mode, above) == (0o600, 0o700)
    assert not Path(path).parent.exists()


def test_no_open_prints_address_without_browser(launched: list[tuple[str, str, int, int]]) -> None:
    result = CliRunner().invoke(app, ["ui", "--no-open"])
    assert (result.exit_code, launched) == (0, [])
    assert ADDRESS in result.output
