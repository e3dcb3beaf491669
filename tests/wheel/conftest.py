"""Wheels of both distributions, built from this checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(project: Path, directory: Path) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(directory)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (built,) = directory.glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Wheel of kplane."""
    return build(ROOT, tmp_path_factory.mktemp("kplane"))


@pytest.fixture(scope="session")
def provider_wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Wheel of kplane-provider."""
    return build(ROOT / "provider", tmp_path_factory.mktemp("provider"))
