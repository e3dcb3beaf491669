"""Where Envoy is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kplane.binaries.envoy import find_envoy
from kplane.binaries.errors import BinariesError


def test_it_is_the_one_of_the_wheel() -> None:
    answer = subprocess.run([find_envoy(environment={}), "--version"], check=True, capture_output=True, text=True)
    assert "version: " in answer.stdout


def _program(directory: Path, says: str) -> Path:
    program = directory / "own"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o700)
    return program


@pytest.mark.parametrize("version", ["1.40.0", "1.41.2", "2.0.0"])
def test_a_named_one_goes_before(tmp_path: Path, version: str) -> None:
    program = _program(tmp_path, f"{tmp_path}/own  version: 9e55/{version}/Clean/RELEASE/BoringSSL")
    assert find_envoy(environment={"KPLANE_ENVOY": str(program)}) == program


@pytest.mark.parametrize(
    ("says", "why"), [("version: 9e55/1.39.3/Clean/RELEASE", "needs 1.40 or later"), ("grep 3.8", "does not say")]
)
def test_find_envoy_refuses_a_named_program_of_another_version(tmp_path: Path, says: str, why: str) -> None:
    program = _program(tmp_path, says)
    with pytest.raises(BinariesError, match=f"(?s){why}.*KPLANE_ENVOY"):
        find_envoy(environment={"KPLANE_ENVOY": str(program)})


@pytest.mark.parametrize("mode", [None, 0o600])
def test_a_named_one_that_cannot_run_is_an_error(tmp_path: Path, mode: int | None) -> None:
    if mode is not None:
        (tmp_path / "own").touch(mode=mode)
    with pytest.raises(BinariesError, match="KPLANE_ENVOY"):
        find_envoy(environment={"KPLANE_ENVOY": str(tmp_path / "own")})


def test_without_the_wheel_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BinariesError, match=r"kplane\[gateway\]"):
        find_envoy(environment={})
