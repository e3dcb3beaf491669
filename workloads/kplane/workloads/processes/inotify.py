"""Inotify instances: Linux allows each user few, and programs that watch files use an instance for each file."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path
from typing import Final

__all__ = ["inotify_shortage"]

_SETTING: Final = "fs.inotify.max_user_instances"
_LIMITS: Final = (Path("/proc/sys/fs/inotify/max_user_instances"), Path("/proc/sys/user/max_inotify_instances"))
"""Limits of the machine, and of the user namespace of this process."""
_ENOUGH: Final = 8192


def inotify_shortage(needed: int) -> str:
    """Return a warning if this user can have fewer than `needed` further inotify instances; empty if enough are free.

    The warning has the limit, its use and the remedy. The function creates the instances and closes them at once, which
    blocks for milliseconds. A count is not possible, because containers with the same user id on a node share the
    limit, and cannot see each other's instances.
    """
    free = _free(needed)
    if free is None or free >= needed:
        return ""
    limit = _limit()
    use = f"{max(0, limit - free)} of {limit}" if limit is not None else f"all but {free}"
    return (
        f"user {os.geteuid()} has {use} inotify instances in use ({_SETTING}), and {needed} more are needed;"
        f" raise the limit: sudo sysctl -w {_SETTING}={_ENOUGH}"
    )


def _free(at_most: int) -> int | None:
    """Count the instances that can be created; None if the number cannot be determined here."""
    try:
        make = ctypes.CDLL(None, use_errno=True).inotify_init1
    except (AttributeError, OSError):  # not Linux
        return None
    descriptors: list[int] = []
    try:
        while len(descriptors) < at_most:
            descriptor = make(os.O_CLOEXEC)
            if descriptor < 0:
                return len(descriptors) if ctypes.get_errno() == errno.EMFILE and _may_open() else None
            descriptors.append(descriptor)
        return at_most
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _may_open() -> bool:
    """Return whether this process may open a further file. If not, EMFILE has another cause than inotify instances."""
    with contextlib.suppress(OSError):
        os.close(os.open(os.devnull, os.O_RDONLY))
        return True
    return False


def _limit() -> int | None:
    limits: list[int] = []
    for path in _LIMITS:
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(path.read_text()))
    return min(limits, default=None)
