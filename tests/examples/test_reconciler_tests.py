"""Programs and tests of the pages about testing and typed objects, as a user copies them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

PAGES = Path(__file__).parents[2] / "docs" / "multicluster"


@pytest.mark.parametrize(("page", "passed"), [("test.md", 4), ("typed.md", 3)])
def test_tests_of_the_page_pass(tmp_path, page, passed):
    blocks = re.findall(r"```python\n# (\S+)\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider", "--rootdir", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert f"{passed} passed" in ran.stdout


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "widgets.py"
    path.write_text(re.search(r"```python\n# widgets.py\n(.*?)```", (PAGES / "typed.md").read_text(), re.DOTALL)[1])
    return path


def test_program_of_typed_objects_prints_its_manifest(program):
    ran = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=60)
    assert yaml.safe_load(ran.stdout)["metadata"]["name"] == "widgets.example.com"


def test_program_of_typed_objects_passes_mypy_in_strict_mode(program):
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", program.parent / "c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
