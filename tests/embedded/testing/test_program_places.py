"""Search order of programs: KPLANE_BINARIES_DIR, the cached pinned version, PATH."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from kplane.binaries.upstreams import KIND, KUBERNETES, Upstream, this_platform
from kplane.testing import programs


def _executable(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o755)
    return file


def _cached(root: Path, upstream: Upstream, program: str) -> Path:
    platform = this_platform()
    place = f"{upstream.name}-v{upstream.version}-{platform.os}-{platform.arch}"
    return _executable(root / "kplane" / "binaries" / place / program)


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": f"{tmp_path / 'bin'}{os.pathsep}/nowhere"}


@pytest.mark.parametrize(("program", "upstream"), [("kind", KIND), ("kubectl", KUBERNETES)])
def test_explicit_program_precedes_pinned_and_path(
    tmp_path: Path, environment: Mapping[str, str], program: str, upstream: Upstream
) -> None:
    find = {"kind": programs.kind, "kubectl": programs.kubectl}[program]
    on_path = _executable(tmp_path / "bin" / program)
    assert find(environment=environment, report=pytest.fail) == on_path
    pinned = _cached(tmp_path / "cache", upstream, program)
    assert find(environment=environment, report=pytest.fail) == pinned
    explicit = _executable(tmp_path / "explicit" / program)
    explicit_environment = {**environment, "KPLANE_BINARIES_DIR": str(explicit.parent)}
    assert find(environment=explicit_environment, report=pytest.fail) == explicit


def test_cached_kind_is_used_if_explicit_directory_has_none(tmp_path: Path, environment: Mapping[str, str]) -> None:
    _executable(tmp_path / "bin" / "kind")
    pinned = _cached(tmp_path / "cache", KIND, "kind")
    explicit_environment = {**environment, "KPLANE_BINARIES_DIR": str(tmp_path)}
    assert programs.kind(environment=explicit_environment, report=pytest.fail) == pinned
