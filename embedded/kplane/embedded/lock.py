"""Locks a directory for a management cluster. The kernel releases the lock when its holder ends."""

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
def hold(directory: Path, *, file: str = _FILE) -> Iterator[None]:
    """Hold the lock of the directory. Raises `DirectoryInUse` if another process holds it.

    `file` is for a second lock, of a program that prepares the directory.
    """
    descriptor = os.open(directory / file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode().strip()
            raise DirectoryInUse(
                f"failed to lock {directory}: process {pid or 'unknown'} already runs a management cluster there; "
                f"end it, or choose another directory"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(descriptor)


def holder(directory: Path, *, file: str = _FILE) -> int | None:
    """Return the id of the process that holds the lock of the directory.

    None if the lock is free; 0 if the holder has not written its id yet.
    """
    try:
        descriptor = os.open(directory / file, os.O_RDWR | os.O_CLOEXEC)
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
