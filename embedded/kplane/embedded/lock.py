"""One management cluster for each directory: a lock that the kernel drops with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from kplane.embedded.errors import DirectoryInUse

__all__ = ["hold", "holder"]

_FILE = "lock"


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Keep the directory for this process. Raises `DirectoryInUse` where another process has it."""
    descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode().strip()
            raise DirectoryInUse(
                f"A management cluster runs over {directory} already (process {pid or 'unknown'}). "
                f"Choose another directory, or end it first."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder(directory: Path) -> int | None:
    """Tell which process holds the directory; None where none does. 0: one does that has not said its id yet."""
    try:
        descriptor = os.open(directory / _FILE, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.pread(descriptor, 32, 0).decode().strip() or 0)
    else:
        return None
    finally:
        os.close(descriptor)
