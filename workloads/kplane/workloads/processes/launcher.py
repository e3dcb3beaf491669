"""Runs a program that the kernel kills when its parent dies, and that may be confined to some files.

Called as `launcher.py PARENT_PID FILE_BYTES COUNT [PATH...] PROGRAM [ARGUMENT...]`. FILE_BYTES is the maximum length of
files that the program writes; empty: the limit of this process. COUNT is the number of paths; empty: the program may
access all files that its user may access. Each path follows a letter: `r` to read and run files below the path, `w` to
write too.

The launcher is a separate program, because the request must be made in the child. Python code between fork and exec
(`preexec_fn`) could deadlock if the parent has threads. The launcher takes 20 ms, and the program then replaces it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import struct
import sys

__all__ = ["landlock_version"]

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, the same on each architecture that Kubernetes is released for."""
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGE_DIR = sum(1 << bit for bit in range(4, 13))
"""Rights to remove and create files, directories and all other file types."""
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SIGNAL_SCOPE = 1 << 1
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _CHANGE_DIR | _REFER
_RIGHTS = {"r": _READ, "w": _WRITE}

_SYSTEM = (
    *(f"r{path}" for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")),
    # Landlock protects the memory, root and open files of other processes, because it refuses ptrace.
    *(f"r{path}" for path in ("/etc", "/proc", "/sys", "/run/systemd/resolve")),
    *(f"r/dev/{name}" for name in ("random", "urandom", "zero")),
    "w/dev/null",
)
"""Programs, libraries and configuration of the machine."""


def main() -> None:
    """Bind this process to its parent's life, confine it, and execute the program in its place."""
    parent, file_bytes, count, rest = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("The supervisor died while this process started.")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and exec would pass that on
    if file_bytes:
        _bound_file_size(int(file_bytes))
    else:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # likewise
    environment = _given_environment()
    if count:
        paths, rest = rest[: int(count)], rest[int(count) :]
        # Without Landlock, the supervisor has logged a warning, and each process can read all files of its user.
        if version := landlock_version():
            _confine((*_SYSTEM, *paths), version=version)
    os.execve(rest[0], rest, environment)  # noqa: S606 - the launcher's purpose is to execute the program


def _bound_file_size(count: int) -> None:
    """Let the kernel refuse writes that would make a file longer than `count` bytes, without ending the program.

    The signal for such a write (SIGXFSZ) would end the program, but stays ignored. Go programs install their own
    handler, and then ignore the signal too (os/signal, "Default behavior of signals in Go programs").
    """
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    least = count if hard == resource.RLIM_INFINITY else min(count, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (least, least))


def _given_environment() -> dict[bytes, bytes]:
    """Read the environment of this process's start: Python itself has added LC_CTYPE since (PEP 538)."""
    with open("/proc/self/environ", "rb") as file:
        entries = [item.partition(b"=") for item in file.read().split(b"\0") if item]
    return {name: value for name, _, value in entries}


def landlock_version() -> int:
    """Return the version of Landlock that the kernel offers this process; 0: none."""
    return max(0, _call(_CREATE_RULESET, None, 0, _VERSION_FLAG))


def _confine(paths: tuple[str, ...], *, version: int) -> None:
    """Remove all rights to files from this process and its program, except the rights to `paths`.

    Each right is requested only from its version on, because a kernel refuses unknown rights. Raises OSError.
    """
    handled = _READ | _WRITE_FILE | _CHANGE_DIR
    handled |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    # Fields handled_access_fs, handled_access_net, scoped: each kernel accepts zeros at the end.
    attributes = struct.pack("=QQQ", handled, 0, _SIGNAL_SCOPE if version >= 6 else 0)
    ruleset = _checked(_CREATE_RULESET, attributes, len(attributes), 0)
    for path in paths:
        _allow(ruleset, path=path[1:], rights=_RIGHTS[path[0]] & handled)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS) failed")
    _checked(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _allow(ruleset: int, *, path: str, rights: int) -> None:
    """Keep the given rights to the files at or below a path. A missing path is ignored."""
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(beneath).st_mode):
            rights &= _OF_FILES
        _checked(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
    finally:
        os.close(beneath)


def _checked(number: int, *arguments: int | bytes | None) -> int:
    result = _call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"system call {number} of Landlock failed: {os.strerror(ctypes.get_errno())}")
    return result


def _call(number: int, *arguments: int | bytes | None) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    wide = (ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments)
    return int(syscall(ctypes.c_long(number), *wide))


if __name__ == "__main__":
    main()
