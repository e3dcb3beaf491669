"""Memory of instances: how much each takes, and a bound so that one tenant's objects cannot take that of all others."""

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
    """When a process was looked at closely, and what it had in memory then."""

    at: float
    resident: int


class MemoryCeiling:
    """Looks every `interval_seconds` at what each instance takes, and ends one that takes more than `limit_bytes`.

    It counts as the kernel's proportional set size does, with its share of pages that instances have in common. The
    runtime starts it again, later and later, as it does after every end.
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
        """Look while within."""
        async with kept_running("memory ceiling", self._keep):
            yield

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            by_pid = {pid: each for each in self._instances() if (pid := each.process.pid) is not None}
            self._looks = {pid: look for pid, look in self._looks.items() if pid in by_pid}
            # In a thread, because the kernel adds up the pages of a process while its table is read.
            for pid, taken in await asyncio.to_thread(self._above, tuple(by_pid)):
                by_pid[pid].end_above(pid, taken_bytes=taken, limit_bytes=self._limit_bytes)

    def _above(self, pids: Sequence[int]) -> list[tuple[int, int]]:
        """Processes that take more, and how many bytes; those that end meanwhile are left out."""
        found = []
        for pid in pids:
            try:
                # Cheap, and never less than the share: only who is near the ceiling is looked at closely.
                resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
            except (OSError, IndexError):
                continue
            if resident <= self._limit_bytes or not self._is_due(pid, resident=resident):
                continue
            self._looks[pid] = _Look(time.monotonic(), resident)
            if (share := pss_of(pid) or 0) > self._limit_bytes:
                found.append((pid, share))
        return found

    def _is_due(self, pid: int, *, resident: int) -> bool:
        """Whether to look closely again: after a while, or sooner where it has grown, as a flood makes it do."""
        last = self._looks.get(pid)
        if last is None or resident > last.resident + self._limit_bytes // _GROWTH:
            return True
        return time.monotonic() - last.at >= _CLOSE_SECONDS


def pss_by_pid(pids: Iterable[int]) -> dict[int, int]:
    """Return the proportional set size of processes, in bytes: shared pages count by the share of each.

    It blocks for up to 2 s. Those that end meanwhile, or that the time does not suffice for, are left out.
    """
    deadline = time.monotonic() + _BUDGET_SECONDS
    found = {}
    for pid in pids:
        if time.monotonic() > deadline:
            break
        if (taken := pss_of(pid)) is not None:
            found[pid] = taken
    return found


def pss_of(pid: int) -> int | None:
    """Return the proportional set size of one process, in bytes; None if it has ended. It blocks."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    line = next((line for line in rollup.splitlines() if line.startswith("Pss:")), None)
    return int(line.split()[1]) * 1024 if line is not None else None
