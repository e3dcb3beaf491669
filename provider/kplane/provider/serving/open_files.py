"""The limit of open files of this process: raised at its start, and a warning before it is reached."""

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

_LOOK_SECONDS: Final = 30.0
_OPEN_MAX: Final = 10_240
"""macOS takes no soft limit beyond this, though its hard limit has no end."""
_HIGH: Final = 0.8
_LOW: Final = 0.7
"""Below that, the next warning may follow: use that swings about the mark is told once."""


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one. Programs that this process starts inherit it.

    Each connection is an open file, and many systems set a soft limit of 1024 for the sake of `select`, which nothing
    here uses. Programs in Go raise their own limit alike.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, max(soft, _OPEN_MAX)):
        with contextlib.suppress(OSError, ValueError):  # the limit that there is counts, and is watched
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return


class OpenFiles(NamedTuple):
    """How many files a process has open, and may have open."""

    used: int
    limit: int

    @classmethod
    def read(cls) -> OpenFiles:
        """Read the numbers of this process. It blocks."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(len(os.listdir("/dev/fd")), limit)


@contextlib.asynccontextmanager
async def watching_open_files(
    read: Callable[[], OpenFiles] = OpenFiles.read, *, interval_seconds: float = _LOOK_SECONDS
) -> AsyncIterator[None]:
    """Warn once if 80 % of the open files are in use, and again after the use was below 70 %."""

    async def watch() -> None:
        warned = False
        while True:
            found = await asyncio.to_thread(read)
            if found.used >= _HIGH * found.limit and not warned:
                warned = True
                log.warning(
                    "%d of %d open files are in use: raise the limit (ulimit -n), or add replicas",
                    *found,
                )
            elif found.used < _LOW * found.limit:
                warned = False
            await asyncio.sleep(interval_seconds)

    async with kept_running("open files", watch):
        yield
