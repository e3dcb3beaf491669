"""Kills components that outlast what allows them: `reaper.py VARIABLE DIRECTORY`, started by `Watchdog`.

It is a program of its own, because a supervisor that is stopped, or whose loop hangs, ends nothing. It imports little,
to stay small. Each line on its standard input has a number, and for each component of DIRECTORY the time
(CLOCK_BOOTTIME) until which it may run. A line replaces the one before. The reaper answers the number on its standard
output. It kills what runs for longer, again and again, and everything when the input ends.

It knows processes by the marker VARIABLE in their environment: a supervisor may be stopped before it reports a number.
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
"""`select` does not count the time for which a machine slept."""
_AGAIN_SECONDS = 0.2
"""What is late may be started again by one who does not know that yet."""
_CHUNK = 1 << 16


def main() -> None:
    """Reap until the standard input ends, and then everything."""
    marker = os.fsencode(f"{sys.argv[1]}={sys.argv[2]}/")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Who ends all processes of a service at once means the supervisor, which may need this one to the last.
        signal.signal(number, signal.SIG_IGN)
    until: dict[bytes, float] = {}
    text = b""
    while True:
        ready, _, _ = select.select([0], [], [], _end_late({marker + name: end for name, end in until.items()}))
        if ready:
            found = os.read(0, _CHUNK)
            if not found:
                break
            *lines, text = (text + found).split(b"\n")
            if lines:
                until = _take(lines[-1])
    _end_all(marker)


def _end_all(marker: bytes) -> None:
    """Kill everything below the marker, until two looks in a row find nothing.

    One look may miss a process: in the middle of exec(2) it has no environment for some microseconds.
    """
    quiet = 0
    while quiet < 2:
        quiet = 0 if _kill({marker}, all_below=True) else quiet + 1
        time.sleep(_AGAIN_SECONDS)


def _end_late(until: dict[bytes, float]) -> float:
    """Kill what has one of these markers for longer than it may; returns for how many seconds to wait then."""
    now = _now()
    late = {marker for marker, end in until.items() if end <= now}
    killed = _kill(late) if late else 0
    # A supervisor that allows nothing more may be stopped for long: then each look would find nothing.
    waits = [end - _now() for marker, end in until.items() if marker not in late]
    return max(0.0, min([_AGAIN_SECONDS if killed else _LOOK_SECONDS, *waits]))


def _take(line: bytes) -> dict[bytes, float]:
    number, until = json.loads(line)
    with contextlib.suppress(BrokenPipeError):  # the end of the input follows
        os.write(1, b"%d\n" % number)
    return {os.fsencode(name): end for name, end in until.items()}


def _kill(markers: set[bytes], *, all_below: bool = False) -> int:
    """Kill the processes with these markers; returns how many there were."""
    count = 0
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        # By a descriptor that was opened before the look: whatever it stands for has the marker, or is gone.
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
