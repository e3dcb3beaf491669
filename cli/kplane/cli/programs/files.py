"""Logs in files of this machine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["FileLog"]

_POLL_SECONDS: Final = 0.25
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FileLog:
    """Log file of a program. When the file is large, its former content is in `<path>.1`, and the file begins again."""

    name: str
    path: Path
    note: str = ""
    silence: str = ""

    async def lines(self, *, last: int | None, follow: bool) -> AsyncGenerator[str, None]:
        """Yield the last lines, or all if `last` is None. With `follow`, then yield each new line without an end."""
        complete_lines, offset = await asyncio.to_thread(self._read)
        for line in (
            complete_lines if last is None else complete_lines[len(complete_lines) - min(last, len(complete_lines)) :]
        ):
            yield line
        rest = b""
        while follow:
            await asyncio.sleep(_POLL_SECONDS)
            size = self.path.stat().st_size if self.path.exists() else 0
            if size < offset:
                offset, rest = 0, b""
            for chunk in self._chunks(offset, size):
                offset += len(chunk)
                *complete, rest = (rest + chunk).split(b"\n")
                for line_bytes in complete:
                    yield line_bytes.decode(errors="replace")

    def _read(self) -> tuple[list[str], int]:
        """Return all complete lines, and the offset after the last complete line."""
        former = self.path.with_name(f"{self.path.name}.1")
        before = former.read_bytes() if former.exists() else b""
        content = self.path.read_bytes() if self.path.exists() else b""
        # A last line without a line feed is not complete yet.
        whole = content[: content.rfind(b"\n") + 1]
        return (before + whole).decode(errors="replace").splitlines(), len(whole)

    def _chunks(self, offset: int, end: int) -> Iterator[bytes]:
        if end <= offset:
            return
        with self.path.open("rb") as file:
            file.seek(offset, os.SEEK_SET)
            while (left := end - file.tell()) > 0 and (chunk := file.read(min(left, _CHUNK_BYTES))):
                yield chunk
