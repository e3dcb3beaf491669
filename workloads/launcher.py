"""Runs a program that the kernel kills when its parent dies: `launcher.py PARENT_PID GROUP PROGRAM [ARGUMENT...]`.

GROUP is the `cgroup.procs` of the control group that it enters before; empty: it stays where it is.

It is a program of its own, because the request must be made in the child, and Python code between fork and exec
(`preexec_fn`) can deadlock where the parent has threads. It takes 20 ms, and leaves nothing but the program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent's life and become the program."""
    parent, group, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    if group:
        _enter(group)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("The supervisor died while this process started.")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores both, and exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    os.execve(program, sys.argv[3:], _given_environment())  # noqa: S606 - becoming the program is what this is for


def _enter(group: str) -> None:
    """Enter the group by now, so that all that the program takes is counted there. It runs also where that fails."""
    try:
        with open(group, "w") as file:
            file.write("0")
    except OSError as error:
        print(f"Memory is not bounded by a control group: {error}.", file=sys.stderr)  # noqa: T201 - into its log


def _given_environment() -> dict[bytes, bytes]:
    """Read what this process was started with: Python itself has added LC_CTYPE since (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        return dict(item.partition(b"=")[::2] for item in file.read().split(b"\0") if item)


if __name__ == "__main__":
    main()
