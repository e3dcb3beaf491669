"""Runs a management cluster in a child process: starts it, waits for it, ends it. Synchronous."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from kplane.binaries.interpreter import inheriting_command
from kplane.binaries.programs import Binaries
from kplane.embedded import lock
from kplane.embedded.components import START_INOTIFY_INSTANCES
from kplane.embedded.errors import DaemonFailed, LeftRunning
from kplane.embedded.handle import LOG_FILE, READY_FILE, Handle
from kplane.embedded.python_path import python_path
from kplane.workloads import end_processes, find_processes, inotify_shortage

__all__ = ["Daemon", "end", "start_cluster", "tail"]

_POLL_SECONDS = 0.05
_TEST_READY_SECONDS = 240.0
"""Generous, because several test processes start their clusters at the same time."""


def tail(log: Path, *, lines: int = 25) -> str:
    """Return the last lines of a log file, of its last 64 KiB; empty if the file does not exist."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 64 * 1024))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


class Daemon:
    """Runs `python -m kplane.embedded` as a child. As a context manager, calls `stop` on exit."""

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Binaries,
        operators: bool = True,
        manifests: bool = True,
        fsync: bool = True,
        bound: bool = True,
        gateway: bool = False,
        kwok: Path | None = None,
    ) -> None:
        """Start the daemon in a directory, and create the directory if it does not exist.

        `operators`, `manifests`, `fsync` and `kwok` are the arguments of `kplane.embedded.cluster.ManagementCluster`.
        `gateway` starts a gateway with the Envoy that `kplane.binaries` finds. A `bound` daemon ends when this process
        ends or is killed; an unbound daemon runs until `end`. Raises `EmbeddedError` and `OSError` if the start fails,
        `DaemonFailed` if too few inotify instances are free for Envoy.
        """
        self.directory = directory
        self.log = directory / LOG_FILE
        # Processes that a killed daemon left already have their instances.
        needed = START_INOTIFY_INSTANCES if gateway and not find_processes(directory) else 0
        if shortage := inotify_shortage(needed):
            raise DaemonFailed(f"failed to start the management cluster in {directory}: {shortage}")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / READY_FILE).unlink(missing_ok=True)
        command = inheriting_command("kplane.embedded", "--directory", str(directory))
        command += ["--kubernetes-programs", str(binaries.kubernetes), "--etcd-programs", str(binaries.etcd)]
        command += [] if operators else ["--no-operators"]
        command += [] if manifests else ["--no-manifests"]
        command += [] if fsync else ["--no-fsync"]
        command += ["--gateway"] if gateway else []
        command += ["--kwok", str(kwok)] if kwok is not None else []
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
        """Wait until the cluster is ready.

        Raises `DaemonFailed` with the tail of the log if it ends or the time is up.
        """
        deadline = time.monotonic() + timeout_seconds
        while not (self.directory / READY_FILE).exists():
            if (status := self._process.poll()) is not None:
                raise self._failure("start", f"it ended with status {status} before it was ready")
            if time.monotonic() > deadline:
                raise self._failure("start", f"it was not ready after {timeout_seconds:.0f} s")
            pause(_POLL_SECONDS)
        return Handle.load(self.directory)

    def stop(self, *, timeout_seconds: float = 60.0) -> None:
        """End the daemon and its processes. Raises `DaemonFailed` or `LeftRunning` if a process had to be killed."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            asyncio.run(end_processes(self.directory, grace_seconds=1.0))
            raise self._failure("stop", f"it ran for {timeout_seconds:.0f} s more and was killed") from None
        left = asyncio.run(end_processes(self.directory, grace_seconds=5.0))
        if left:
            raise LeftRunning(f"failed to stop {self.directory} in order: processes {left} had to be killed")
        if status != 0:
            raise self._failure("stop", f"it ended with status {status}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _failure(self, verb: str, cause: str) -> DaemonFailed:
        end_of_log = f"end of {self.log}:\n{tail(self.log)}"
        return DaemonFailed(f"failed to {verb} the management cluster in {self.directory}: {cause}; {end_of_log}")


@contextlib.contextmanager
def start_cluster(binaries: Binaries, *, operators: bool, manifests: bool = True) -> Iterator[Handle]:
    """Run a management cluster for tests in a temporary directory, without fsync. Raises as `Daemon` does."""
    directory = Path(tempfile.mkdtemp(prefix="kplane-test-"))
    try:
        with Daemon(directory, binaries=binaries, operators=operators, manifests=manifests, fsync=False) as daemon:
            yield daemon.wait_ready(timeout_seconds=_TEST_READY_SECONDS)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def end(directory: Path, *, timeout_seconds: float = 60.0) -> list[int]:
    """End the management cluster in a directory, and the processes that a crashed cluster left.

    Returns the ids of the processes that outlived the daemon: none after a graceful shutdown.
    Raises `LeftRunning` if a process does not end.
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
        raise LeftRunning(f"failed to end the management cluster in {directory}: processes {left} still run")
    return ended
