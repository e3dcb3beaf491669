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
    """What a browser was given: a path, its text, and the modes of the file and its directory."""
    entry = {
        "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(yaml.safe_dump(entry))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    found = []

    def launch(target: str) -> int:
        path = Path(target)
        modes = (stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent))
        found.append((target, path.read_text(), *modes))
        return 0

    async def serve(_: Any, *, port: int, ready: Callable[[str], None]) -> None:
        ready(ADDRESS)

    monkeypatch.setattr("typer.launch", launch)
    monkeypatch.setattr("kplane.cli.ui.server.serve", serve)
    return found


def test_a_file_that_only_this_user_reads_has_the_key(launched: list[tuple[str, str, int, int]]) -> None:
    done = CliRunner().invoke(app, ["ui"])
    assert done.exit_code == 0, done.output
    ((path, text, mode, above),) = launched
    assert "the-key" not in path
    assert f'content="0; url={ADDRESS}"' in text
    assert (mode, above) == (0o600, 0o700)
    assert not Path(path).parent.exists()


def test_no_browser_is_started_if_none_is_wanted(launched: list[tuple[str, str, int, int]]) -> None:
    done = CliRunner().invoke(app, ["ui", "--no-open"])
    assert (done.exit_code, launched) == (0, [])
    assert ADDRESS in done.output
