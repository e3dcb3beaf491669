"""Starts `kplane.testing.clean.server` for tests, and asks it for a clean API server. Synchronous."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kplane.binaries.interpreter import inheriting_command
from kplane.embedded.daemon import tail
from kplane.embedded.errors import DaemonFailed
from kplane.embedded.handle import log_files
from kplane.embedded.python_path import python_path
from kplane.workloads import end_processes

__all__ = ["CleanServer"]

_LOG: Final = "daemon.log"
_START_SECONDS: Final = 400.0
_ANSWER_SECONDS: Final = 150.0
_STOP_SECONDS: Final = 60.0


class CleanServer:
    """Runs etcd and kube-apiserver in a temporary directory. A context manager.

    Each method raises `DaemonFailed` with the end of the log.
    """

    def __init__(self, *, programs: Sequence[Path]) -> None:
        """Start etcd and kube-apiserver with the programs in these directories, and wait until both are ready."""
        self.directory: Final = Path(tempfile.mkdtemp(prefix="kplane-clean-"))
        self._log = self.directory / _LOG
        command = inheriting_command("kplane.testing.clean.server", f"--directory={self.directory}")
        command += [f"--programs={directory}" for directory in dict.fromkeys(programs)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path()},
            )
        try:
            described = self._read(timeout_seconds=_START_SECONDS)
        except BaseException:
            self.stop()
            raise
        self.kubeconfig: Final = Path(described["kubeconfig"])
        self.server: Final[str] = described["server"]
        self.start_seconds: Final[float] = described["seconds"]

    @property
    def logs(self) -> tuple[Path, ...]:
        """Log files that are not empty."""
        return log_files(self.directory)

    def prepare(self) -> int:
        """Record the API server's present data as the clean state, and return the number of its keys."""
        return int(self._ask("prepare")["keys"])

    def clean(self) -> dict[str, float]:
        """Reset the API server, and return the number of changes and the seconds."""
        return self._ask("clean")

    def stop(self) -> None:
        """End both programs, and remove the directory."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        asyncio.run(end_processes(self.directory, grace_seconds=5.0))
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _ask(self, request: str) -> dict[str, Any]:
        if self._process.stdin is None:
            raise self._failure("has no standard input")
        try:
            self._process.stdin.write(f"{request}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise self._failure(f"did not take the request {request!r} ({error})") from error
        return self._read(timeout_seconds=_ANSWER_SECONDS)

    def _read(self, *, timeout_seconds: float) -> dict[str, Any]:
        """Read a line. The process writes only whole lines, and waits for a request after each line."""
        output = self._process.stdout
        if output is None:
            raise self._failure("has no standard output")
        deadline, line = time.monotonic() + timeout_seconds, b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise self._failure(f"did not answer within {timeout_seconds:.0f} s")
                read = os.read(output.fileno(), 1 << 16)
                if not read:
                    raise self._failure("ended")
                line += read
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failure(self, what: str) -> DaemonFailed:
        return DaemonFailed(f"failed to use the clean API server: it {what}; end of {self._log}:\n{tail(self._log)}")
