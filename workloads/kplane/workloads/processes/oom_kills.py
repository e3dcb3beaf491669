"""Processes that the kernel kills for want of memory, as a control group counts them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["OomKills", "find_counter"]


class OomKills:
    """How often the kernel has killed a process of this control group for want of memory: of its limit, or of all.

    Version 2 counts those below too (`oom_kill` of memory.events,
    https://docs.kernel.org/admin-guide/cgroup-v2.html), version 1 this group alone (`oom_kill` of memory.oom_control).
    Where neither can be read, which is so without control groups, no end is taken for one of these.
    """

    def __init__(self, path: Path | None = None) -> None:
        """`path` is the file; by default that of this process's own group."""
        self._path = path if path is not None else find_counter()
        self._taken = self._read()

    def take(self) -> bool:
        """Whether there was one that nobody has taken yet: each explains the end of one process."""
        left = self._read() > self._taken
        self._taken += left
        return left

    def _read(self) -> int:
        if self._path is None:
            return 0
        try:
            found = dict(line.split() for line in self._path.read_text().splitlines())
            return int(found.get("oom_kill", 0))
        except (OSError, ValueError):
            return 0


def find_counter(root: Path = Path("/sys/fs/cgroup"), *, membership: Path = Path("/proc/self/cgroup")) -> Path | None:
    """Find the file that counts; in a container its group is mounted as the root, which may or may not be said."""
    try:
        groups = [line.split(":", 2)[1:] for line in membership.read_text().splitlines()]
    except (OSError, ValueError):
        return None
    for controllers, group in groups:
        if controllers == "":
            places = [root / group.lstrip("/") / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            places = [
                root / "memory" / group.lstrip("/") / "memory.oom_control",
                root / "memory" / "memory.oom_control",
            ]
        else:
            continue
        if (found := next((place for place in places if place.is_file()), None)) is not None:
            return found
    return None
