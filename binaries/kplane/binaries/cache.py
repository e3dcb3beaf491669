"""The user's cache of programs: one directory per upstream, version and platform.

Programs appear there whole or not at all, and one process at a time puts them there.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kplane.binaries.errors import BinariesError
from kplane.binaries.progress import Heartbeat, Report
from kplane.binaries.upstreams import Platform, Upstream

__all__ = ["Cache", "cache_root", "describe_lacking", "lacking", "publish"]

_LOCK_POLL_SECONDS = 0.2
_LOCK_DEADLINE_SECONDS = 2 * 3600.0


def cache_root(environment: Mapping[str, str]) -> Path:
    """Where the programs are kept, by XDG_CACHE_HOME or HOME."""
    # The XDG specification tells to ignore relative paths.
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        home = environment.get("HOME")
        base = (Path(home) if home else Path.home()) / ".cache"
    return base / "kplane" / "binaries"


def lacking(directory: Path, *, programs: Sequence[str]) -> tuple[str, ...]:
    """Which of the programs are not in the directory as executable files."""
    return tuple(p for p in programs if not ((directory / p).is_file() and os.access(directory / p, os.X_OK)))


def describe_lacking(directory: Path, *, programs: Sequence[str]) -> str:
    """Say for people why each of these lacking programs counts as lacking."""
    return ", ".join(f"{p} (not executable)" if (directory / p).exists() else p for p in programs)


def publish(staged: Path, *, directory: Path) -> None:
    """Move a finished program into the directory, on disk before it is seen under its name."""
    directory.mkdir(parents=True, exist_ok=True)
    staged.chmod(0o755)
    _flush(staged)
    staged.replace(directory / staged.name)
    _flush(directory)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache below one root directory."""

    root: Path

    def directory(self, upstream: Upstream, *, platform: Platform) -> Path:
        """Where the programs of the pinned version are, or would be. Raises BinariesError when go.mod does not say."""
        return self.root / f"{upstream.name}-v{upstream.version}-{platform.os}-{platform.arch}"

    @contextmanager
    def exclusive(self, name: str, *, report: Report) -> Iterator[Path]:
        """Be the only process that fills the entry `name`; yields an empty directory on the same file system.

        Waits for a process that is at it already, and tells `report` for whom. The kernel drops the lock of a process
        that dies; what a killed one left half-done is removed here. Raises BinariesError when the cache can't be
        written, or the other process takes hours.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            # Lock files stay: to remove one would let two processes hold "the" lock on two different files.
            lock = os.open(self.root / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BinariesError(f"the cache {self.root} cannot be written: {error.strerror}.") from error
        try:
            _acquire(lock, name=name, report=report)
            for leftover in self.root.glob(f".{name}.staging-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                prefix=f".{name}.staging-", dir=self.root, ignore_cleanup_errors=True
            ) as staging:
                yield Path(staging)
        finally:
            os.close(lock)


def _acquire(lock: int, *, name: str, report: Report) -> None:
    waiting: Heartbeat | None = None
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode(errors="replace").strip() or "unknown"
            if waiting is None:
                waiting = Heartbeat(report, what=f"{name}: waiting for process {owner}")
                report(f"{name}: waiting for process {owner}, which is obtaining it already")
            elif waiting.elapsed_seconds > _LOCK_DEADLINE_SECONDS:
                raise BinariesError(
                    f"process {owner} has been obtaining {name} for hours; look what it does, end it and try again."
                ) from None
            waiting.beat()
            time.sleep(_LOCK_POLL_SECONDS)
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            return


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
