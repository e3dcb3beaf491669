"""Runs a program that the kernel kills when its parent dies.

Called as `launcher.py PARENT_PID FILE_BYTES PROGRAM [ARGUMENT...]`. FILE_BYTES is the longest file that the program may
write; empty: as long as this process may write now.

It is a program of its own, because the request must be made in the child, and Python code between fork and exec
(`preexec_fn`) can deadlock where the parent has threads. It takes 20 ms, and leaves nothing but the program.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Bind this process to its parent's life and become the program."""
    parent, file_bytes, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("The supervisor died while this process started.")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would hand that on
    if file_bytes:
        _bound_file_size(int(file_bytes))
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # likewise
    os.execve(program, sys.argv[3:], _given_environment())  # noqa: S606 - becoming the program is what this is for


def _bound_file_size(count: int) -> None:
    """Have the kernel refuse a write that would make a file longer, and nothing else come of it.

    The signal that tells of it would end the program, but stays ignored. Go takes that back, and then does nothing in
    its turn (os/signal, "Default behavior of signals in Go programs").
    """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    least = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (least, least))


def _given_environment() -> dict[bytes, bytes]:
    """Read what this process was started with: Python itself has added LC_CTYPE since (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        return dict(item.partition(b"=")[::2] for item in file.read().split(b"\0") if item)


if __name__ == "__main__":
    main()
