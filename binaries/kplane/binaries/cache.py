"""Keeps programs in the user's cache: one directory for each upstream, version and platform.

A program appears there only when it is complete. A lock allows only a single process at a time to add programs.
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
    """Return the root of the cache, from XDG_CACHE_HOME or HOME."""
    # The XDG specification demands that relative paths are ignored.
    base = Path(environment.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        home = environment.get("HOME")
        base = (Path(home) if home else Path.home()) / ".cache"
    return base / "kplane" / "binaries"


def lacking(directory: Path, *, programs: Sequence[str]) -> tuple[str, ...]:
    """List the programs that are not executable files in the directory."""
    return tuple(p for p in programs if not ((directory / p).is_file() and os.access(directory / p, os.X_OK)))


def describe_lacking(directory: Path, *, programs: Sequence[str]) -> str:
    """Return the names of the missing programs for people, with the reason if a file exists."""
    return ", ".join(f"{p} (not executable)" if (directory / p).exists() else p for p in programs)


def publish(staged: Path, *, directory: Path) -> None:
    """Move a finished program into the directory. The content is flushed to disk before the file gets its name."""
    directory.mkdir(parents=True, exist_ok=True)
    staged.chmod(0o755)
    _flush(staged)
    staged.replace(directory / staged.name)
    _flush(directory)


@dataclass(frozen=True, slots=True)
class Cache:
    """The cache below a root directory."""

    root: Path

    def directory(self, upstream: Upstream, *, platform: Platform) -> Path:
        """Return the directory for the pinned version. Raises BinariesError if go.mod pins no version."""
        return self.root / f"{upstream.name}-v{upstream.version}-{platform.os}-{platform.arch}"

    @contextmanager
    def exclusive(self, name: str, *, report: Report) -> Iterator[Path]:
        """Lock the entry `name` for this process, and yield an empty directory on the same file system.

        Waits for a process that holds the lock, and names it to `report`. The kernel releases the lock of a process
        that dies, and `exclusive` removes the files that the process left. Raises BinariesError if the cache cannot be
        written, or if the other process holds the lock for more than two hours.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            # Lock files stay: after a removal, two processes could hold the lock on two different files.
            lock = os.open(self.root / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BinariesError(
                f"failed to write the cache {self.root}: {error.strerror}; make it writable, or set XDG_CACHE_HOME"
            ) from error
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
                report(f"{name}: waiting for process {owner}, which already obtains it")
            elif waiting.elapsed_seconds > _LOCK_DEADLINE_SECONDS:
                raise BinariesError(
                    f"failed to obtain {name}: process {owner} has held its lock for hours; end it and retry"
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
