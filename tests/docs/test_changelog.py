"""Changelog: fragments become an entry above the former ones."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]


def test_fragments_have_a_type_of_the_changelog() -> None:
    types = {kind["directory"] for kind in SETTINGS["type"]}
    fragments = [path.name for path in (ROOT / SETTINGS["directory"]).iterdir() if path.name != "README.md"]
    assert [name for name in fragments if name.split(".")[1:-1] not in [[kind] for kind in types]] == []


def test_release_puts_fragments_below_the_title_and_above_former_entries(tmp_path: Path) -> None:
    for name in ("pyproject.toml", SETTINGS["filename"]):
        shutil.copy(ROOT / name, tmp_path)
    fragments = tmp_path / SETTINGS["directory"]
    fragments.mkdir()
    (fragments / "+sleep.added.md").write_text("Control planes sleep.\n")
    command = [sys.executable, "-m", "towncrier", "build", "--keep", "--version", "9.9.9", "--date", "2030-01-01"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60.0)
    lines = (tmp_path / SETTINGS["filename"]).read_text().splitlines()
    title, release, *former = [line for line in lines if line.startswith("#")]
    assert (title, release) == ("# Changelog", "## 9.9.9 (2030-01-01)")
    assert former[:2] == ["### Added", "## Unreleased"]
