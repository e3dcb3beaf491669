"""CPU time and memory of all processes of the demo, from the process table."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from kplane.embedded.handle import Handle
from kplane.workloads import find_processes

__all__ = ["Cost"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time that the processes have used so far, and their present memory."""

    processor_seconds: float
    memory_mib: float

    @classmethod
    def of(cls, handle: Handle) -> Self:
        """Return the sum for the processes of the management cluster and of its tenants."""
        seconds = memory = 0.0
        for pid in (handle.pid, *find_processes(handle.directory)):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended in the meantime
                seconds += _processor_seconds(pid)
                memory += _memory_mib(pid)
        return cls(seconds, memory)

    def __sub__(self, earlier: Cost) -> Cost:
        """Return the increase since an earlier cost."""
        return Cost(self.processor_seconds - earlier.processor_seconds, self.memory_mib - earlier.memory_mib)


def _processor_seconds(pid: int) -> float:
    """Return the CPU time in seconds of a process and of its children that have ended."""
    # The process name, in parentheses, can have spaces. utime to cstime are fields 14 to 17 (proc(5)).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15]) / _TICKS


def _memory_mib(pid: int) -> float:
    """Return the proportional set size of a process in MiB: a share of each shared page counts."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) / _MIB for line in lines if line.startswith("Pss:")), 0.0)
