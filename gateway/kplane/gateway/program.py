"""Envoy as a program of this machine: how it is started, and how it is asked about a configuration."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kplane.gateway.envoy.bootstrap import Layout, bootstrap
from kplane.gateway.errors import ConfigurationRejected
from kplane.workloads import Component, Lifetime, ProgramFailed, ProgramTimedOut, run_program

__all__ = ["ENVOY", "INOTIFY_INSTANCES", "EnvoyValidator", "envoy_component"]

ENVOY: Final = "envoy"
"""Name of the component."""

INOTIFY_INSTANCES: Final = 5
"""Those that Envoy takes: one for each file that it watches. It aborts if it does not get them."""

_DIGEST: Final = "KPLANE_GATEWAY_DIGEST"
_VALIDATION_SECONDS: Final = 120.0
_SHOWN: Final = 500
_REFUSED: Final = "error initializing configuration"
_CONSTRAINT: Final = "Proto constraint validation failed"
_DRAIN_SECONDS: Final = 5.0
_CANDIDATE: Final = "candidate-"


def envoy_component(program: Path, *, layout: Layout, workers: int, memory_bytes: int) -> Component:
    """Describe Envoy as a process. It outlives the controller, and the next controller finds it again.

    Another program, or another bootstrap, is another component: what Envoy does not read again restarts it. Raises
    OSError if there is no program.
    """
    file = program.stat()
    digest = hashlib.sha256(
        f"{file.st_size} {file.st_mtime_ns} ".encode() + bootstrap(layout, memory_bytes=memory_bytes)
    ).hexdigest()
    return Component(
        name=ENVOY,
        program=str(program),
        args=(
            "--config-path",
            str(layout.bootstrap),
            "--concurrency",
            str(workers),
            # Another Envoy of this machine may use the shared memory of hot restarts.
            "--disable-hot-restart",
            # A hold that cannot drain names changes in flight from a file. Envoy's default is ten seconds.
            "--file-flush-interval-msec",
            "500",
            "--log-level",
            "warning",
        ),
        env={_DIGEST: digest},
        lifetime=Lifetime.INDEPENDENT,
        grace_seconds=_DRAIN_SECONDS,
    )


class EnvoyValidator:
    """Asks Envoy whether it would take a configuration (`envoy --mode validate`)."""

    def __init__(self, program: Path, *, directory: Path) -> None:
        """`directory` exists and is the gateway's alone: the configuration has keys in it."""
        self._program = program
        self._directory = directory

    def remove_leftovers(self) -> None:
        """Remove the files of calls that were killed: there are keys in them."""
        for file in self._directory.glob(f"{_CANDIDATE}*.json"):
            file.unlink(missing_ok=True)

    async def __call__(self, configuration: bytes) -> None:
        """Raise ConfigurationRejected if it would not."""
        with self._file(configuration) as file:
            args = ("--mode", "validate", "--config-path", str(file), "--disable-hot-restart", "--log-level", "error")
            try:
                await run_program(self._program, args, timeout_seconds=_VALIDATION_SECONDS)
            except ProgramFailed as error:
                raise ConfigurationRejected(_reason(error)) from error
            except ProgramTimedOut as error:
                raise ConfigurationRejected(str(error)) from error

    @contextlib.contextmanager
    def _file(self, content: bytes) -> Iterator[Path]:
        # mkstemp makes it with mode 0600.
        descriptor, name = tempfile.mkstemp(prefix=_CANDIDATE, suffix=".json", dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)


def _reason(error: ProgramFailed) -> str:
    """Return why Envoy refuses, without the message that it refuses: there are keys in that."""
    written = (error.stderr or b"").decode(errors="replace")
    _, found, reason = written.rpartition(_REFUSED)
    if not found:
        return f"Envoy ended with exit code {error.exit_code}"
    _, _, constraint = reason.rpartition(_CONSTRAINT)
    return " ".join(constraint.split())[:_SHOWN]
