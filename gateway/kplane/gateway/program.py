"""Envoy as a process: its command line, and the validation of configurations."""

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
"""Name of the component that runs Envoy."""

INOTIFY_INSTANCES: Final = 5
"""Number of inotify instances that Envoy needs: one for each file that it watches. Envoy aborts without them."""

_DIGEST: Final = "KPLANE_GATEWAY_DIGEST"
_VALIDATION_SECONDS: Final = 120.0
_SHOWN: Final = 500
_REFUSED: Final = "error initializing configuration"
_CONSTRAINT: Final = "Proto constraint validation failed"
_DRAIN_SECONDS: Final = 5.0
_CANDIDATE: Final = "candidate-"


def envoy_component(program: Path, *, layout: Layout, workers: int, memory_bytes: int) -> Component:
    """Return the component that runs Envoy.

    The process outlives the controller, and the next controller finds it again. The environment of the component
    contains a digest of the binary's size and modification time and of the bootstrap. Envoy cannot reload either, so a
    change of the digest restarts Envoy. Raises OSError if the binary does not exist.
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
            # The shared memory for hot restarts may belong to another Envoy on this machine.
            "--disable-hot-restart",
            # The gateway reads mutating requests in flight from a log (`in_flight.py`). Envoy's default interval is ten
            # seconds.
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
    """Validates configurations with `envoy --mode validate`."""

    def __init__(self, program: Path, *, directory: Path) -> None:
        """Create a validator.

        `directory` must exist and belong to the gateway alone: the configurations contain private keys.
        """
        self._program = program
        self._directory = directory

    def remove_leftovers(self) -> None:
        """Remove configurations of calls that were killed. They contain private keys."""
        for file in self._directory.glob(f"{_CANDIDATE}*.json"):
            file.unlink(missing_ok=True)

    async def __call__(self, configuration: bytes) -> None:
        """Validate a configuration.

        Raises ConfigurationRejected if Envoy rejects it, or does not finish within 120 s.
        """
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
        # mkstemp creates the file with mode 0600.
        descriptor, name = tempfile.mkstemp(prefix=_CANDIDATE, suffix=".json", dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)


def _reason(error: ProgramFailed) -> str:
    """Return the reason of Envoy's rejection, without the rejected message: it contains private keys."""
    written = (error.stderr or b"").decode(errors="replace")
    _, marker, reason = written.rpartition(_REFUSED)
    if not marker:
        return f"Envoy ended with exit code {error.exit_code}"
    _, _, constraint = reason.rpartition(_CONSTRAINT)
    return " ".join(constraint.split())[:_SHOWN]
