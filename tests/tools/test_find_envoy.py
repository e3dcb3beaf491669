"""Lookup of the Envoy program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kplane.binaries.envoy import find_envoy
from kplane.binaries.errors import BinariesError


def test_find_envoy_returns_program_of_the_wheel() -> None:
    answer = subprocess.run([find_envoy(environment={}), "--version"], check=True, capture_output=True, text=True)
    assert "version: " in answer.stdout


def _program(directory: Path, says: str) -> Path:
    program = directory / "own"
    program.write_text(f"#!/bin/sh\necho '{says}'\n")
    program.chmod(0o700)
    return program


@pytest.mark.parametrize("version", ["1.40.0", "1.41.2", "2.0.0"])
def test_find_envoy_prefers_named_program(tmp_path: Path, version: str) -> None:
    program = _program(tmp_path, f"{tmp_path}/own  version: 9e55/{version}/Clean/RELEASE/BoringSSL")
    assert find_envoy(environment={"KPLANE_ENVOY": str(program)}) == program


@pytest.mark.parametrize(
    ("says", "why"), [("version: 9e55/1.39.3/Clean/RELEASE", "needs 1.40 or later"), ("grep 3.8", "does not say")]
)
def test_find_envoy_refuses_named_program_of_unsupported_version(tmp_path: Path, says: str, why: str) -> None:
    program = _program(tmp_path, says)
    with pytest.raises(BinariesError, match=f"(?s){why}.*KPLANE_ENVOY"):
        find_envoy(environment={"KPLANE_ENVOY": str(program)})


@pytest.mark.parametrize("mode", [None, 0o600])
def test_find_envoy_refuses_named_program_that_cannot_run(tmp_path: Path, mode: int | None) -> None:
    if mode is not None:
        (tmp_path / "own").touch(mode=mode)
    with pytest.raises(BinariesError, match="KPLANE_ENVOY"):
        find_envoy(environment={"KPLANE_ENVOY": str(tmp_path / "own")})


def test_find_envoy_without_wheel_names_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envoy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BinariesError, match=r"kplane\[gateway\]"):
        find_envoy(environment={})
