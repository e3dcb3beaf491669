"""A folder with files named like modules, as an attacker could leave in a clone or in /tmp."""

from __future__ import annotations

from pathlib import Path

import pytest

MODULES = ("aiohttp", "logging", "sitecustomize", "string", "typer", "uvloop", "venv", "yaml")
MARK = "PLANTED"


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder whose Python files write `MARK` to standard error, and end the process."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for module in MODULES:
        text = f"import os, sys\nsys.stderr.write('{MARK} {module}\\n')\nsys.stderr.flush()\nos._exit(9)\n"
        (folder / f"{module}.py").write_text(text)
    return folder
