"""Limit of open files of this process: raises the limit at the start, and warns before the process reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

from kplane.provider.aio.running import kept_running

__all__ = ["OpenFiles", "raise_limit", "watching_open_files"]

log: Final = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 30.0
_MACOS_MAX: Final = 10_240
"""Maximum soft limit of macOS, whose hard limit is infinite."""
_HIGH: Final = 0.8
_LOW: Final = 0.7
"""Share of open files below which the warning is armed again: repeated crossings of `_HIGH` cause no new warnings."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Programs that this process starts inherit the limit.

    Each connection is an open file. Many systems set a soft limit of 1024 for the sake of `select`, which this package
    does not use. Programs in Go raise their own limit, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for desired in (hard, max(soft, _MACOS_MAX)):
        with contextlib.suppress(OSError, ValueError):  # `watching_open_files` watches the limit that applies
            resource.setrlimit(resource.RLIMIT_NOFILE, (desired, hard))
            return


class OpenFiles(NamedTuple):
    """Number of open files of a process, and its limit."""

    used: int
    limit: int

    @classmethod
    def read(cls) -> OpenFiles:
        """Read the numbers of this process. Blocks the thread."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(len(os.listdir("/dev/fd")), limit)


@contextlib.asynccontextmanager
async def watching_open_files(
    read: Callable[[], OpenFiles] = OpenFiles.read, *, interval_seconds: float = _CHECK_SECONDS
) -> AsyncIterator[None]:
    """Warn once if 80 % of the open files are in use, and again after the use has dropped below 70 %."""

    async def watch() -> None:
        warned = False
        while True:
            open_files = await asyncio.to_thread(read)
            if open_files.used >= _HIGH * open_files.limit and not warned:
                warned = True
                log.warning(
                    "%d of %d open files are in use: raise the limit (ulimit -n), or add replicas",
                    *open_files,
                )
            elif open_files.used < _LOW * open_files.limit:
                warned = False
            await asyncio.sleep(interval_seconds)

    async with kept_running("open files", watch):
        yield
