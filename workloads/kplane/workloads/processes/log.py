"""The log of a component: the program itself appends to the file, so that it needs no supervisor to write."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from kplane.workloads.last_words import last_fatal_line

__all__ = ["LogFile"]

_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 2048
_TAIL_LINES = 20
_SEARCHED_BYTES = 64 << 10

logger = logging.getLogger(__name__)


class LogFile:
    """A log file and its predecessor `<name>.1`, each kept near a limit.

    A full file is copied and truncated, because the program keeps it open. Lines written during the copy can be lost.
    """

    def __init__(self, path: Path, *, limit_bytes: int) -> None:
        self.path = path
        self._limit = limit_bytes
        self._mark = 0

    def open(self) -> int:
        """Open the log for a new run of the program. Returns a descriptor, which the caller closes."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._mark = os.fstat(descriptor).st_size
        return descriptor

    def tail(self) -> str:
        """Return the last lines that the present run wrote: at most 20 lines and 2 KiB."""
        return "\n".join(self._end(_TAIL_BYTES).splitlines()[-_TAIL_LINES:])

    def fatal_line(self) -> str:
        """Return the last fatal line of the present run; empty if it has no such line."""
        return last_fatal_line(self._end(_SEARCHED_BYTES))

    def _end(self, limit_bytes: int) -> str:
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                first = self._mark if self._mark <= size else 0
                file.seek(max(first, size - limit_bytes))
                return file.read(limit_bytes).decode(errors="replace")
        except OSError:
            return ""

    async def keep_bounded(self, *, interval_seconds: float) -> None:
        """Check the size now and after each interval, and rotate the log if it exceeds the limit. Never returns."""
        while True:
            try:
                if self.path.stat().st_size > self._limit:
                    await self._rotate()
            except OSError as error:
                logger.warning("The log %s cannot be rotated: %s", self.path, error)
            await asyncio.sleep(interval_seconds)

    async def _rotate(self) -> None:
        """Copy the last `limit` bytes, in chunks that block the loop for a millisecond each; then truncate the log."""
        copy = self.path.with_name(f".{self.path.name}.new")
        source = os.open(self.path, os.O_RDWR)
        try:
            target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                offset = max(0, os.fstat(source).st_size - self._limit)
                end = offset + self._limit
                while offset < end and (sent := os.sendfile(target, source, offset, min(_CHUNK_BYTES, end - offset))):
                    offset += sent
                    await asyncio.sleep(0)
            finally:
                os.close(target)
            copy.replace(self.path.with_name(f"{self.path.name}.1"))
            os.ftruncate(source, 0)
            self._mark = 0
        finally:
            os.close(source)
