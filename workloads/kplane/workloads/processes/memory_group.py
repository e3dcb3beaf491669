"""Control groups of memory, one for each component that is bounded: the kernel itself ends what takes more."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import logging
import os
from pathlib import Path
from typing import Final

from kplane.workloads.processes.oom_kills import OomKills, find_counter

__all__ = ["MemoryGroup", "MemoryGroups", "is_delegated"]

logger = logging.getLogger(__name__)

_MARKS: Final = ("user.delegate", "trusted.delegate")
"""Attributes of a group, "1" where it may be divided by who runs in it: systemd sets them for `Delegate=`
(https://systemd.io/CGROUP_DELEGATION). That it can be written tells nothing, as root can write every group.
"""
_PROCESSES: Final = "cgroup.procs"
_LEAF: Final = "kplane-supervisor"
_ROUNDS: Final = 10
_TRIES: Final = 50
_BUSY_SECONDS: Final = 0.02


class MemoryGroup:
    """The group of one component."""

    def __init__(self, path: Path) -> None:
        self.entry = path / _PROCESSES
        """Whoever writes 0 there is in the group, with all that it takes and starts from then on."""
        version_1 = path / "memory.oom_control"
        self._kills = OomKills(version_1 if version_1.exists() else path / "memory.events")

    def take_kills(self) -> bool:
        """Whether the kernel has killed in the group since the last call, however many."""
        found = False
        while self._kills.take():
            found = True
        return found


class MemoryGroups:
    """The groups of the components of the runtime over `directory`, below the control group of this process.

    They are made only where that one is marked as delegated to who runs in it. Of version 2 it has to have the memory
    controller, and the first group that is made moves what runs in it, this process too, to a group below: a group that
    divides memory has no processes (https://docs.kernel.org/admin-guide/cgroup-v2.html, no internal processes). No
    group but those below is ever changed. `counter` is the file that tells its kills, see `find_counter`.
    """

    def __init__(self, directory: Path, *, counter: Path | None = None) -> None:
        self._prefix = f"kplane-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}-"
        self._counter = counter if counter is not None else find_counter()
        """Asked once, as the move changes the answer."""
        self._groups: dict[str, MemoryGroup] = {}
        self._prepared: Path | None = None
        """The group below which others can be made."""
        self._problem = ""
        """Why none can be."""

    def clear(self) -> None:
        """Remove the groups that an earlier run has left, but those in which something runs."""
        with contextlib.suppress(OSError):
            for path in self._own().glob(f"{self._prefix}*"):
                with contextlib.suppress(OSError):
                    path.rmdir()

    def make(self, name: str, *, limit_bytes: int | None) -> MemoryGroup | None:
        """Make the group of a component, or change its limit; None without a limit, and where it cannot be had.

        Why it cannot is told in the log, once while it stays the same.
        """
        if limit_bytes is None:
            return None
        try:
            if self._prepared is None:
                self._prepared = self._prepare()
            path = self._prepared / f"{self._prefix}{name}"
            path.mkdir(exist_ok=True)
            _bound(path, limit_bytes)
        except OSError as error:
            if self._problem != str(error):
                self._problem = str(error)
                logger.info("the memory of components is not bounded by control groups: %s", error)
            return None
        return self._groups.setdefault(name, MemoryGroup(path))

    async def remove(self, name: str) -> None:
        """Remove the group of a component that has ended. One that cannot be removed is told in the log, and left."""
        if self._groups.pop(name, None) is None or self._prepared is None:
            return
        path = self._prepared / f"{self._prefix}{name}"
        problem: OSError | None = None
        for _ in range(_TRIES):
            try:
                path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                problem = error
                await asyncio.sleep(_BUSY_SECONDS)  # the kernel may count what has ended for a moment longer
            else:
                return
        logger.warning("the control group of component %s is left: %s", name, problem)

    def _own(self) -> Path:
        """Find the group of this process. Raises OSError where it is not one that may be divided."""
        if self._counter is None:
            raise FileNotFoundError(errno.ENOENT, "there is no control group that counts memory")
        own = self._counter.parent
        if str(os.getpid()) not in (own / _PROCESSES).read_text().split():
            raise PermissionError(errno.EPERM, "this process is not in it", str(own))
        if not is_delegated(own):
            raise PermissionError(errno.EPERM, f"not delegated, which {_MARKS[0]}=1 would say", str(own))
        return own

    def _prepare(self) -> Path:
        """Have groups below the own one bounded. Raises OSError where that cannot be; then nothing is changed."""
        own = self._own()
        if (own / "memory.limit_in_bytes").exists():  # version 1, where groups with groups may have processes
            return own
        if "memory" not in (own / "cgroup.controllers").read_text().split():
            raise FileNotFoundError(errno.ENOENT, "the memory controller is not there", str(own))
        leaf = own / _LEAF
        leaf.mkdir(exist_ok=True)
        try:
            _move_all(own, leaf)
            (own / "cgroup.subtree_control").write_text("+memory")
        except OSError:
            with contextlib.suppress(OSError):
                _move_all(leaf, own)
                leaf.rmdir()
            raise
        return own


def _bound(path: Path, limit_bytes: int) -> None:
    """Set the limit, and leave no swap to go to where that is counted."""
    limit = str(limit_bytes)
    if (path / "memory.limit_in_bytes").exists():
        with_swap = path / "memory.memsw.limit_in_bytes"
        _write_if_there(with_swap, "-1")  # it must never be the lower one of the two
        (path / "memory.limit_in_bytes").write_text(limit)
        _write_if_there(with_swap, limit)
    else:
        (path / "memory.max").write_text(limit)
        _write_if_there(path / "memory.swap.max", "0")
        _write_if_there(path / "memory.oom.group", "1")


def _write_if_there(path: Path, text: str) -> None:
    if path.exists():
        path.write_text(text)


def _move_all(source: Path, target: Path) -> None:
    """Move every process; what they start meanwhile is found in the next round."""
    for _ in range(_ROUNDS):
        pids = (source / _PROCESSES).read_text().split()
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (target / _PROCESSES).write_text(pid)


def is_delegated(group: Path) -> bool:
    """Whether a control group is marked as one that who runs in it may divide."""
    for mark in _MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return False
