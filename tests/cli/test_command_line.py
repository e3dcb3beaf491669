"""Help, demo directories and state directory of the command `kplane`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kplane.cli.choices import DEMO_MARKER
from kplane.cli.demo.site import default_directory
from kplane.cli.main import app
from kplane.embedded import lock

HEAVY = (
    "aiohttp",
    "cryptography",
    "embedded",
    "kopf",
    "kubernetes",
    "orjson",
    "pydantic",
    "rich",
    "uvloop",
    "workloads",
    "yaml",
)


def _kplane(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def test_help_lists_commands_without_heavy_imports() -> None:
    program = (
        "import sys\n"
        "from kplane.cli.main import app\n"
        "app(['--help'], standalone_mode=False)\n"
        f"print('loaded:', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "loaded: []" in result.stdout
    for command in ("demo", "demo-down", "binaries"):
        assert command in result.stdout


def test_demo_down_succeeds_if_no_demo_exists(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kplane.cli.main", "demo-down", "--directory", str(tmp_path / "never")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0
    assert "No demo is in" in result.stdout


@pytest.mark.parametrize("command", ["demo", "demo-down"])
def test_demo_commands_refuse_directory_with_foreign_files(tmp_path: Path, command: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    result = _kplane(command, "--directory", tmp_path)
    assert result.exit_code == 1
    assert "holds files that no demo wrote" in result.stdout
    assert precious.read_text() == "mine"


def test_second_demo_in_same_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / DEMO_MARKER).touch()
    with lock.hold(tmp_path):
        result = _kplane("demo", "--directory", tmp_path)
    assert result.exit_code == 1
    assert f"kplane demo-down --directory {tmp_path}" in " ".join(result.stdout.split())


def test_default_directory_follows_xdg_state_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_directory() == tmp_path / "kplane" / "demo"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_directory() == tmp_path / ".local" / "state" / "kplane" / "demo"
