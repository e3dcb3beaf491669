"""Kills components that exceed their deadline: `reaper.py VARIABLE DIRECTORY`, started by `Watchdog`.

The reaper is a separate program, because a supervisor that is stopped, or whose loop hangs, cannot end components. It
imports few modules, to stay small. Each line on its standard input has a number, and for each component of DIRECTORY
the deadline (CLOCK_BOOTTIME). A line replaces the previous line. The reaper answers with the number on its standard
output. It kills late components repeatedly, and all components of DIRECTORY when the input ends.

The reaper finds processes by the marker VARIABLE in their environment, because a supervisor may be stopped before it
reports a process id.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

_LOOK_SECONDS = 0.5
"""Maximum wait between checks. `select` does not count the time for which a machine was suspended."""
_AGAIN_SECONDS = 0.2
"""Wait after a kill. A starter that does not know of the deadline yet may start a late component again."""
_CHUNK = 1 << 16


def main() -> None:
    """Kill late components until the standard input ends, and then all components."""
    marker = os.fsencode(f"{sys.argv[1]}={sys.argv[2]}/")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # A signal to all processes of a service is meant for the supervisor, which may need the reaper until its end.
        signal.signal(number, signal.SIG_IGN)
    until: dict[bytes, float] = {}
    text = b""
    while True:
        ready, _, _ = select.select([0], [], [], _end_late({marker + name: end for name, end in until.items()}))
        if ready:
            chunk = os.read(0, _CHUNK)
            if not chunk:
                break
            *lines, text = (text + chunk).split(b"\n")
            if lines:
                until = _take(lines[-1])
    _end_all(marker)


def _end_all(marker: bytes) -> None:
    """Kill all processes below the marker, until two consecutive scans find none.

    A single scan may miss a process: during exec(2), a process has no environment for some microseconds.
    """
    quiet = 0
    while quiet < 2:
        quiet = 0 if _kill({marker}, all_below=True) else quiet + 1
        time.sleep(_AGAIN_SECONDS)


def _end_late(until: dict[bytes, float]) -> float:
    """Kill the processes of late components. Returns the seconds to wait until the next check."""
    now = _now()
    late = {marker for marker, end in until.items() if end <= now}
    killed = _kill(late) if late else 0
    # Without late processes, wait longer: scans during a long stop of the supervisor would find no process.
    waits = [end - _now() for marker, end in until.items() if marker not in late]
    return max(0.0, min([_AGAIN_SECONDS if killed else _LOOK_SECONDS, *waits]))


def _take(line: bytes) -> dict[bytes, float]:
    number, until = json.loads(line)
    with contextlib.suppress(BrokenPipeError):  # the end of the input follows
        os.write(1, b"%d\n" % number)
    return {os.fsencode(name): end for name, end in until.items()}


def _kill(markers: set[bytes], *, all_below: bool = False) -> int:
    """Kill the processes with these markers. Returns their number."""
    count = 0
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        # The descriptor is opened before the environment is read: its process has the marker, or is gone.
        with contextlib.suppress(OSError), _opened(int(name)) as process:
            with open(f"/proc/{name}/environ", "rb") as file:
                items = file.read().split(b"\0")
            if markers.intersection(items) or (all_below and any(item.startswith(tuple(markers)) for item in items)):
                signal.pidfd_send_signal(process, signal.SIGKILL)
                count += 1
    return count


@contextlib.contextmanager
def _opened(pid: int) -> Iterator[int]:
    pidfd = os.pidfd_open(pid)
    try:
        yield pidfd
    finally:
        os.close(pidfd)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    main()
