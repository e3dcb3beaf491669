"""Which versions programs of this machine are: they are asked, once each."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kplane.workloads.errors import ProgramFailed, ProgramTimedOut, RuntimeFailure
from kplane.workloads.processes.launch import find_program
from kplane.workloads.processes.program import run_program

__all__ = ["ProgramVersions"]

_TIMEOUT_SECONDS: Final = 15.0
_VERSION: Final = re.compile(rb"(?<![0-9.])v?([0-9]+[.][0-9]+[.][0-9]+)(?![0-9])")


class ProgramVersions:
    """Asks programs for their version, and remembers the answers for as long as the files are the same."""

    def __init__(self, programs: Sequence[Path]) -> None:
        """`programs` are the directories searched, in this order."""
        self._programs = tuple(programs)
        self._asking = asyncio.Lock()
        self._known: dict[Path, tuple[tuple[int, int], str]] = {}

    async def of(self, program: str) -> str:
        """Return the version that `<program> --version` tells, such as "1.36.3".

        Raises RuntimeFailure where there is no such program, or it tells none within 15 s.
        """
        path = find_program(program, programs=self._programs, of=f"The version of {program}")
        async with self._asking:
            try:
                status = await asyncio.to_thread(path.stat)
                identity = status.st_mtime_ns, status.st_ino
                known = self._known.get(path)
                if known is None or known[0] != identity:
                    answer = await run_program(path, ["--version"], timeout_seconds=_TIMEOUT_SECONDS)
                    known = self._known[path] = identity, _read(answer, path=path)
            except (OSError, ProgramFailed, ProgramTimedOut) as error:
                raise RuntimeFailure(f"The version of {path} cannot be found out: {error}") from error
            return known[1]


def _read(answer: bytes, *, path: Path) -> str:
    found = _VERSION.search(answer)
    if found is None:
        said = answer[:200].decode(errors="replace").strip()
        raise RuntimeFailure(f"The version of {path} cannot be found out: asked by --version it said {said!r}.")
    return found[1].decode()
