"""How much memory processes take."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["pss_by_pid", "pss_of"]

_BUDGET_SECONDS: Final = 2.0


def pss_by_pid(pids: Iterable[int]) -> dict[int, int]:
    """Tell the proportional set size of processes, in bytes: shared pages count by the share of each.

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
    """Tell the proportional set size of one process, in bytes; None where it has ended. It blocks."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return None
    line = next((line for line in rollup.splitlines() if line.startswith("Pss:")), None)
    return int(line.split()[1]) * 1024 if line is not None else None
