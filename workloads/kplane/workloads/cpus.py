"""How many CPUs there are for this process, by which it is decided how much starts at once."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["usable_cpus"]


def usable_cpus(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPUs that this process may use, at least one: by its affinity, and by the quota of its control group (v2)."""
    count = len(os.sched_getaffinity(0))
    try:
        share, period = quota.read_text().split()
        limit = int(share) // int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        return count
    return max(1, min(count, limit))
