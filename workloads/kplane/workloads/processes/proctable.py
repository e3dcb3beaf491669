"""The kernel's table of processes, and the marker that identifies supervised processes in it.

Each supervised process carries its component's directory and the digest of its description in its environment. So there
is no record that could be lost between a fork and a write. A supervisor finds each process, even after its own restart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

__all__ = [
    "DIGEST_VARIABLE",
    "MARKER_VARIABLE",
    "ProcessEntry",
    "group_members",
    "marked_processes",
    "open_pidfd",
    "processor_seconds",
    "read_command",
    "running_components",
    "uptime",
]

MARKER_VARIABLE = "KPLANE_COMPONENT"
DIGEST_VARIABLE = "KPLANE_COMPONENT_HASH"

_TICKS = os.sysconf("SC_CLK_TCK")
_EXEC_TRIES = 20
_EXEC_RETRY_SECONDS = 0.0002
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of Linux' include/linux/sched.h, in the flags of /proc/<pid>/stat."""


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process of this user."""

    pid: int
    group: int
    session: int
    ticks: int
    """Start time in clock ticks since boot; together with `pid` it identifies the process for ever."""
    marker: str = ""
    """Directory of the process's component; empty if the process has no marker, or is dead already."""
    digest: str = ""
    program: bool = True
    """Whether the entry runs a program: it is not a kernel thread, and not dead."""

    @property
    def leader(self) -> bool:
        """Whether the process is the main process of its component."""
        return self.pid == self.session

    @property
    def started(self) -> float:
        """Start time in seconds, on the clock of `uptime`."""
        return self.ticks / _TICKS


def uptime() -> float:
    """Return the seconds since boot, including suspension: the clock of process starts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def processor_seconds(pid: int) -> float | None:
    """Return the processor time that all threads of a process have used; None if the process is gone."""
    fields = _read_fields(pid)
    return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS


def marked_processes(directory: Path) -> list[ProcessEntry]:
    """List this user's processes of the component `directory`, or of components below it, oldest first."""
    prefix = f"{directory.resolve()}/"
    entries = [entry for entry in _entries() if f"{entry.marker}/".startswith(prefix)]
    return sorted(entries, key=lambda entry: (entry.ticks, entry.pid))


def running_components() -> set[Path]:
    """Return the directories of all components that have processes of this user."""
    return {Path(entry.marker) for entry in _entries() if entry.marker}


def group_members(group: int) -> list[ProcessEntry]:
    """List the processes of this user in a process group."""
    return [entry for entry in _entries(group=group) if entry.group == group]


def open_pidfd(entry: ProcessEntry) -> int | None:
    """Open a descriptor that refers to exactly this process; None if the process has ended and is gone."""
    try:
        pidfd = os.pidfd_open(entry.pid)
    except ProcessLookupError:
        return None
    now = _read_stat(entry.pid)
    if now is not None and now.ticks == entry.ticks:
        return pidfd
    os.close(pidfd)
    return None


def read_command(entry: ProcessEntry) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the arguments and the environment of the start of a process. Raises OSError if the process is gone."""
    arguments = Path(f"/proc/{entry.pid}/cmdline").read_bytes().split(b"\0")[:-1]
    variables = (item.partition(b"=")[::2] for item in _read_environment(entry).split(b"\0") if item)
    return tuple(map(os.fsdecode, arguments)), {os.fsdecode(name): os.fsdecode(value) for name, value in variables}


def _entries(*, group: int | None = None) -> Iterator[ProcessEntry]:
    user = os.geteuid()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != user:
                continue
        except OSError:
            continue  # the process ended while the table was read
        entry = _read_stat(int(name))
        if entry is not None and group in {None, entry.group}:
            yield _with_marker(entry)


def _read_stat(pid: int) -> ProcessEntry | None:
    fields = _read_fields(pid)
    if fields is None:
        return None
    return ProcessEntry(
        pid=pid,
        group=int(fields[2]),
        session=int(fields[3]),
        ticks=int(fields[19]),
        program=fields[0] not in {b"Z", b"X"} and not int(fields[6]) & _KERNEL_THREAD,
    )


def _read_fields(pid: int) -> list[bytes] | None:
    """Return the fields of /proc/PID/stat from the state on; None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The command's name is in parentheses and may contain any character. The numbers follow the last parenthesis.
    return text[text.rindex(b")") + 2 :].split()


def _with_marker(entry: ProcessEntry) -> ProcessEntry:
    try:
        environment = _read_environment(entry)
    except OSError:
        return entry
    values = {name: value for name, _, value in (item.partition(b"=") for item in environment.split(b"\0"))}
    return replace(
        entry,
        marker=os.fsdecode(values.get(MARKER_VARIABLE.encode(), b"")),
        digest=os.fsdecode(values.get(DIGEST_VARIABLE.encode(), b"")),
    )


def _read_environment(entry: ProcessEntry) -> bytes:
    """Read the environment. Raises OSError if the process is gone."""
    for _ in range(_EXEC_TRIES if entry.program else 0):
        if environment := Path(f"/proc/{entry.pid}/environ").read_bytes():
            return environment
        # During exec(2), a process has no environment for some microseconds.
        time.sleep(_EXEC_RETRY_SECONDS)
    return b""
