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


def test_a_named_one_goes_before(tmp_path: Path) -> None:
    program = tmp_path / "own"
    program.touch(mode=0o700)
    assert find_envoy(environment={"KPLANE_ENVOY": str(program)}) == program


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
