"""Builds programs from the pinned source with `go build`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from kplane.binaries.cache import Cache
from kplane.binaries.errors import WayError
from kplane.binaries.progress import Heartbeat, Report
from kplane.binaries.toolchain import Go, find_go
from kplane.binaries.upstreams import Platform, Upstream

__all__ = ["build"]

_BUILD_DEADLINE_SECONDS = 3600.0
_OUTPUT_LINES = 12
_PR_SET_PDEATHSIG = 1


def build(
    upstream: Upstream,
    *,
    programs: Sequence[str],
    platform: Platform,
    staging: Path,
    cache: Cache,
    environment: Mapping[str, str],
    report: Report,
) -> Iterator[Path]:
    """Build programs of the pinned version in `staging`, and yield each program when its build of some minutes is done.

    Raises WayError if Go is missing, or if a build fails.
    """
    go = find_go(upstream.go_version, cache=cache, environment=environment, report=report)
    # Temporary files are in the staging directory, so that the next build removes the files of a killed build.
    temporary = staging / "tmp"
    temporary.mkdir()
    target = {"GOOS": platform.os, "GOARCH": platform.arch, "GOTMPDIR": str(temporary)}
    go = Go(go.command, {**go.environment, **target})
    report(f"{upstream.name}: building {', '.join(programs)} v{upstream.version} from source, once; this takes minutes")
    for program in programs:
        heartbeat = Heartbeat(report, what=f"{program}: building")
        output = staging / f"{program}.log"
        arguments = ["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", _ldflags(upstream)]
        _run(
            [str(go.command), "build", *arguments, "-o", str(staging / program), upstream.packages[program]],
            go=go,
            directory=upstream.directory,
            output=output,
            program=program,
            heartbeat=heartbeat,
        )
        report(f"{program}: built in {heartbeat.elapsed_seconds:.0f} s")
        yield staging / program


def _ldflags(upstream: Upstream) -> str:
    version = upstream.version
    major, minor, _ = version.split(".", 2)
    stamps = {name: value.format(version=version, major=major, minor=minor) for name, value in upstream.stamps.items()}
    return " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in stamps.items())])


def _run(command: list[str], *, go: Go, directory: Path, output: Path, program: str, heartbeat: Heartbeat) -> None:
    with output.open("wb") as log:
        try:
            process = subprocess.Popen(
                command,
                cwd=directory,
                env=go.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509 - only prctl, from a library that is loaded before the fork
            )
        except OSError as error:
            raise WayError(f"failed to run {go.command}: {error.strerror}") from error
    try:
        while process.poll() is None:
            if heartbeat.elapsed_seconds > _BUILD_DEADLINE_SECONDS:
                raise WayError(f"failed to build {program}: not done after {_BUILD_DEADLINE_SECONDS:.0f} s")
            heartbeat.beat()
            try:
                process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        last = "\n".join(output.read_text(errors="replace").splitlines()[-_OUTPUT_LINES:])
        raise WayError(f"failed to build {program}: go ended with status {process.returncode}:\n{last}".rstrip(":\n"))


def _die_with_parent() -> Callable[[], None]:
    """Return a function for the child, after which the kernel kills the child when this process ends.

    An orphaned build would compete with the next build.
    """
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def ask_the_kernel() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    return ask_the_kernel
