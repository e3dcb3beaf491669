"""Editors and type checkers on a clone without a virtual environment."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMPONENTS = sorted(path.parent.name for path in ROOT.glob("*/kplane/*/__init__.py"))
TOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
PROGRAM = """
from kplane.provider import Manager, NotFound, controller
from kplane.provider.providers.file import FileProvider

reveal_type(Manager)
reveal_type(FileProvider)
"""


def test_mypy_pyright_and_ruff_search_every_component() -> None:
    assert [path.rpartition("/")[2] for path in TOOLS["mypy"]["mypy_path"]] == [*COMPONENTS, "typings"]
    assert TOOLS["pyright"]["include"] == [*COMPONENTS, "examples"]
    assert TOOLS["pyright"]["extraPaths"] == COMPONENTS
    assert TOOLS["ruff"]["src"] == [*COMPONENTS, "."]


def test_pyright_resolves_runtime_in_clone_without_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    for component in COMPONENTS:
        (tmp_path / component).symlink_to(ROOT / component)
    (tmp_path / "program.py").write_text(PROGRAM)
    # This Python has no packages, and so no editable install.
    bare = Path(sys.base_prefix) / "bin" / "python3"
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", str(bare), "program.py"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    diagnostics = json.loads(checked.stdout)["generalDiagnostics"]
    messages = [
        diagnostic["message"]
        for diagnostic in diagnostics
        if diagnostic["file"].endswith("program.py") and diagnostic["severity"] != "warning"
    ]
    assert [message for message in messages if "reveal_type" not in message] == [
        'Type of "Manager" is "type[Manager]"',
        'Type of "FileProvider" is "type[FileProvider]"',
    ], checked.stdout + checked.stderr
