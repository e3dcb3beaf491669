"""Number of CPUs that this process may use, from which callers derive how many programs start at once."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["usable_cpus"]


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of usable CPUs, at least 1: the CPU affinity, limited by the control group's quota (v2)."""
    count = len(os.sched_getaffinity(0))
    try:
        share, period = quota.read_text().split()
        limit = int(share) // int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no control group of version 2, or the quota is "max"
        return count
    return max(1, min(count, limit))
