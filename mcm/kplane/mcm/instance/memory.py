"""Memory of instances: its measurement, and a limit so that objects of a tenant cannot exhaust the memory of others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kplane.mcm.instance.lifecycle import Instance
from kplane.provider.aio.running import kept_running

__all__ = ["MemoryCeiling", "pss_by_pid", "pss_of"]

_BUDGET_SECONDS: Final = 2.0
_CLOSE_SECONDS: Final = 5.0
_GROWTH: Final = 16
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


class _Look(NamedTuple):
    """Time of the last close look at a process, and its resident memory then."""

    at: float
    resident: int


class MemoryCeiling:
    """Kills each instance that takes more memory than `limit_bytes`; checks every `interval_seconds`.

    The memory of an instance is the kernel's proportional set size, which includes a share of each shared page. The
    runtime restarts a killed instance with backoff, as after every end.
    """

    def __init__(
        self, instances: Callable[[], Iterable[Instance]], *, limit_bytes: int, interval_seconds: float = 1.0
    ) -> None:
        self._instances = instances
        self._limit_bytes = limit_bytes
        self._interval_seconds = interval_seconds
        self._looks: dict[int, _Look] = {}

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Check memory inside the block."""
        async with kept_running("memory ceiling", self._keep):
            yield

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            by_pid = {pid: instance for instance in self._instances() if (pid := instance.process.pid) is not None}
            self._looks = {pid: look for pid, look in self._looks.items() if pid in by_pid}
            # In a thread, because the kernel adds up the pages of a process while its table is read.
            for pid, taken in await asyncio.to_thread(self._above, tuple(by_pid)):
                by_pid[pid].end_above(pid, taken_bytes=taken, limit_bytes=self._limit_bytes)

    def _above(self, pids: Sequence[int]) -> list[tuple[int, int]]:
        """Return the processes above the limit, each with its bytes, without processes that end in the meantime."""
        excess = []
        for pid in pids:
            try:
                # Resident memory is cheap to read, and never less than the share. Only processes whose resident memory
                # is above the limit need a close look.
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
            except (OSError, IndexError):
                continue
            if resident <= self._limit_bytes or not self._is_due(pid, resident=resident):
                continue
            self._looks[pid] = _Look(time.monotonic(), resident)
            if (share := pss_of(pid) or 0) > self._limit_bytes:
                excess.append((pid, share))
        return excess

    def _is_due(self, pid: int, *, resident: int) -> bool:
        """Whether a close look is due: after 5 s, or sooner if the process has grown, as in a flood of objects."""
        last = self._looks.get(pid)
        if last is None or resident > last.resident + self._limit_bytes // _GROWTH:
            return True
        return time.monotonic() - last.at >= _CLOSE_SECONDS


def pss_by_pid(pids: Iterable[int]) -> dict[int, int]:
    """Return the proportional set size of processes, in bytes: each process counts its share of shared pages.

    Blocks for up to 2 s. The result omits processes that end in the meantime, and processes after the 2 s.
    """
    deadline = time.monotonic() + _BUDGET_SECONDS
    sizes = {}
    for pid in pids:
        if time.monotonic() > deadline:
            break
        if (taken := pss_of(pid)) is not None:
            sizes[pid] = taken
    return sizes


def pss_of(pid: int) -> int | None:
    """Return the proportional set size of one process, in bytes; None if it has ended. Blocks."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    line = next((line for line in rollup.splitlines() if line.startswith("Pss:")), None)
    return int(line.split()[1]) * 1024 if line is not None else None
