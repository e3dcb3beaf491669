"""How busy the processors are that mcm may use."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

__all__ = ["CpuPressure"]

_PLACES: Final = (Path("/sys/fs/cgroup/cpu.pressure"), Path("/proc/pressure/cpu"))
"""Of the container, whose quota counts too, else of the machine."""
_SOME: Final = re.compile(r"^some avg10=(\d+\.\d+) .*total=(\d+)$", re.MULTILINE)
_SHORTEST_SECONDS: Final = 0.5
_LONGEST_SECONDS: Final = 10.0


class CpuPressure:
    """The part of the time in which something that could run had to wait for a processor, from 0 to 1.

    Linux tells it (https://docs.kernel.org/accounting/psi.html): its sum, and the average of ten seconds. Where it is
    not told, it is 0. `now` is a clock in seconds.
    """

    def __init__(self, places: Sequence[Path] = _PLACES, *, now: Callable[[], float] = time.monotonic) -> None:
        self._places = places
        self._now = now
        self._seen: tuple[float, int] | None = None
        self._pressure = 0.0

    def look(self) -> float:
        """Tell it for the time since the last look, half a second at least; of 10 s the first time, and after long."""
        now = self._now()
        if self._seen is not None and now - self._seen[0] < _SHORTEST_SECONDS:
            return self._pressure
        found = self._read()
        if found is None:
            return 0.0
        average, total = found
        if self._seen is not None and now - self._seen[0] <= _LONGEST_SECONDS:
            average = (total - self._seen[1]) / 1e6 / (now - self._seen[0])
        self._seen, self._pressure = (now, total), min(1.0, max(0.0, average))
        return self._pressure

    def _read(self) -> tuple[float, int] | None:
        for place in self._places:
            try:
                found = _SOME.search(place.read_text())
            except OSError:
                continue
            if found is not None:
                return float(found[1]) / 100, int(found[2])
        return None
