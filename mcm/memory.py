"""How much memory processes take."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["pss_by_pid"]

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
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        if line := next((line for line in rollup.splitlines() if line.startswith("Pss:")), None):
            found[pid] = int(line.split()[1]) * 1024
    return found
