"""A management cluster in a process of its own: started, waited for and ended from elsewhere. Synchronous."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from kplane.binaries.programs import Binaries
from kplane.embedded import lock
from kplane.embedded.errors import DaemonFailed, LeftRunning
from kplane.embedded.handle import LOG_FILE, READY_FILE, Handle
from kplane.embedded.python_path import python_path
from kplane.workloads import end_processes, find_processes

__all__ = ["Daemon", "end", "start_cluster", "tail"]

_POLL_SECONDS = 0.05
_TEST_READY_SECONDS = 240.0
"""Generous: test processes start their clusters at the same time on a machine of few cores."""


def tail(log: Path, *, lines: int = 25) -> str:
    """Give the last lines of a log file; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


class Daemon:
    """`python -m embedded`, as a child. A context manager that ends it; raises what `stop` raises."""

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Binaries,
        operators: bool = True,
        manifests: bool = True,
        fsync: bool = True,
        bound: bool = True,
    ) -> None:
        """Start the daemon over a directory, which is made where it is not there.

        `operators`, `manifests` and `fsync` are those of `kplane.embedded.cluster.ManagementCluster`.
        `bound`: it ends by itself when this process ends, in whatever way. Otherwise it goes on until `end`.
        Raises `EmbeddedError` and `OSError` where it cannot be started.
        """
        self.directory = directory
        self.log = directory / LOG_FILE
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / READY_FILE).unlink(missing_ok=True)
        command = [sys.executable, "-m", "kplane.embedded", "--directory", str(directory)]
        command += ["--kubernetes-programs", str(binaries.kubernetes), "--etcd-programs", str(binaries.etcd)]
        command += [] if operators else ["--no-operators"]
        command += [] if manifests else ["--no-manifests"]
        command += [] if fsync else ["--no-fsync"]
        command += ["--until-stdin-closes"] if bound else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if bound else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": python_path()},
            )

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self._process.pid

    def wait_ready(self, *, timeout_seconds: float, pause: Callable[[float], None] = time.sleep) -> Handle:
        """Wait until the cluster is ready. Raises `DaemonFailed` with the log's tail where it does not get so."""
        deadline = time.monotonic() + timeout_seconds
        while not (self.directory / READY_FILE).exists():
            if (status := self._process.poll()) is not None:
                raise self._failure(f"ended with status {status} before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(f"was not ready after {timeout_seconds:.0f} s")
            pause(_POLL_SECONDS)
        return Handle.load(self.directory)

    def stop(self, *, timeout_seconds: float = 60.0) -> None:
        """End the daemon and all that it runs. Raises `DaemonFailed` and `LeftRunning` where that needed force."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            asyncio.run(end_processes(self.directory, grace_seconds=1.0))
            raise self._failure(f"did not stop within {timeout_seconds:.0f} s and was killed") from None
        left = asyncio.run(end_processes(self.directory, grace_seconds=5.0))
        if left:
            raise LeftRunning(f"The management cluster over {self.directory} left processes {left}; they were ended.")
        if status != 0:
            raise self._failure(f"ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _failure(self, what: str) -> DaemonFailed:
        return DaemonFailed(
            f"The management cluster over {self.directory} {what}. End of {self.log}:\n{tail(self.log)}"
        )


@contextlib.contextmanager
def start_cluster(binaries: Binaries, *, operators: bool, manifests: bool = True) -> Iterator[Handle]:
    """Run a management cluster for tests in a directory of its own, which goes with it. Its data is not kept: no fsync.

    Raises what `Daemon` raises, and its methods.
    """
    directory = Path(tempfile.mkdtemp(prefix="kplane-test-"))
    try:
        with Daemon(directory, binaries=binaries, operators=operators, manifests=manifests, fsync=False) as daemon:
            yield daemon.wait_ready(timeout_seconds=_TEST_READY_SECONDS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def end(directory: Path, *, timeout_seconds: float = 60.0) -> list[int]:
    """End the management cluster over a directory, whoever started it, and whatever a crashed one left.

    Returns the ids of the processes that had to be ended one by one: none after a clean stop.
    Raises `LeftRunning` where some are still there.
    """
    deadline = time.monotonic() + timeout_seconds
    asked: int | None = None
    while (pid := lock.holder(directory)) is not None:
        if pid and time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        elif pid and pid != asked:
            os.kill(pid, signal.SIGTERM)
            asked = pid
        time.sleep(_POLL_SECONDS)
    ended = asyncio.run(end_processes(directory, grace_seconds=5.0))
    if left := find_processes(directory):
        raise LeftRunning(f"Processes of {directory} are still running: {left}.")
    return ended
