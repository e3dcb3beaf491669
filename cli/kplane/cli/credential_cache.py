"""Cache of the credentials that kubectl requests, in private files below the user's cache directory.

The module imports little, because each call of kubectl waits for it. Each function does nothing if another user can
read or write the file or the directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator

__all__ = ["VALID_SECONDS", "forget", "hand_out", "hand_out_last", "keep", "render"]

VALID_SECONDS = 900.0
"""Maximum time until a client asks again. The official Python client asks `_EARLY_SECONDS` before."""
_EARLY_SECONDS = 300.0
_API_VERSION = "client.authentication.k8s.io/v1"
_KEPT_SECONDS = 30 * 86400.0
_CLOCKS_DIFFER_NANOSECONDS = 60 * 10**9
_HEX = frozenset("0123456789abcdef-")
_MOST_BYTES_OF_CLIENTS = 16 * 1024


def hand_out(uid: str) -> str | None:
    """Return the cached ExecCredential of a control plane for the calling client; None if it must be fetched.

    If a client asks again long before the expiry, an API server has refused the credential with 401. The client gets
    None then.
    """
    entry = _read(uid)
    if entry is None:
        return None
    number, fresh_until, expires, status = entry
    if time.time() >= fresh_until or _was_handed_out(uid, number):
        return None
    if float(number) > time.time_ns() + _CLOCKS_DIFFER_NANOSECONDS:
        return None  # It was issued while a clock was ahead. API servers may refuse it until that time.
    return _record(uid, number, expires=expires, status=status)


def hand_out_last(uid: str) -> str | None:
    """Return the last cached ExecCredential, even if it should be renewed; None if it has expired."""
    entry = _read(uid)
    if entry is None:
        return None
    number, _, expires, status = entry
    return _record(uid, number, expires=expires, status=status) if time.time() < expires else None


def keep(uid: str, status: str, *, issued: float, expires: float) -> str:
    """Cache a credential for two thirds of its lifetime, and return its ExecCredential for the calling client.

    `status` has the members of the credential as JSON text in a single line, without braces. Times are seconds since
    1970.
    """
    number = time.time_ns()
    if (directory := _directory(create=True)) is not None and _is_uid(uid):
        fresh_until = issued + (expires - issued) * 2 / 3
        partial = os.path.join(directory, f".{uid}.{os.getpid()}")
        _remove_old(directory)
        with contextlib.suppress(OSError):
            descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "w") as file:
                file.write(f"{number} {fresh_until:.0f} {expires:.0f}\n{status}\n")
            os.replace(partial, _path(directory, uid))
    return _record(uid, number, expires=expires, status=status)


def forget(uid: str) -> None:
    """Remove the cached credential of a control plane, so that the next client gets a new one."""
    if (directory := _directory()) is not None and _is_uid(uid):
        with contextlib.suppress(OSError):
            os.unlink(_path(directory, uid))


def render(status: str, *, expires: float | None = None) -> str:
    """Return an ExecCredential with these members, valid for a client for at most `VALID_SECONDS`."""
    until = time.time() + VALID_SECONDS
    until = until if expires is None else min(until, expires)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
    return (
        f'{{"apiVersion": "{_API_VERSION}", "kind": "ExecCredential",'
        f' "status": {{"expirationTimestamp": "{stamp}", {status}}}}}'
    )


def _remove_old(directory: str) -> None:
    """Remove the files of control planes that were last used long ago."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if time.time() - entry.stat(follow_symlinks=False).st_mtime > _KEPT_SECONDS:
                os.unlink(entry.path)


def _read(uid: str) -> tuple[str, float, float, str] | None:
    """Return number, end of freshness, expiry, and members of a cached credential; None if there is none."""
    if (directory := _directory()) is None or not _is_uid(uid):
        return None
    try:
        with _private(_path(directory, uid)) as descriptor, open(descriptor, closefd=False) as file:
            head, status = file.read().splitlines()
        number, fresh_until, expires = head.split()
        return str(int(number)), float(fresh_until), float(expires), status
    except (OSError, ValueError):
        return None


def _was_handed_out(uid: str, number: str) -> bool:
    """Return whether the calling process has this credential already, and its validity has not passed."""
    client = _client()
    directory = _directory()
    if directory is None:
        return False
    with contextlib.suppress(OSError), _private(_clients_path(directory, uid)) as descriptor:
        for line in os.read(descriptor, 2 * _MOST_BYTES_OF_CLIENTS).decode(errors="replace").splitlines():
            given_to, _, rest = line.partition(" ")
            given, _, until = rest.partition(" ")
            if (given_to, given) == (client, number) and until.isdigit() and time.time() < int(until):
                return True
    return False


def _record(uid: str, number: str | int, *, expires: float, status: str) -> str:
    """Record that the calling process has this credential, and return the text for the process."""
    if (directory := _directory()) is not None and _is_uid(uid):
        valid = min(time.time() + VALID_SECONDS, expires) - time.time()
        until = time.time() + max(valid - _EARLY_SECONDS, valid / 2)
        path = _clients_path(directory, uid)
        with contextlib.suppress(OSError):
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW
            descriptor = os.open(path, flags, 0o600)
            try:
                if os.fstat(descriptor).st_size > _MOST_BYTES_OF_CLIENTS:
                    os.ftruncate(descriptor, 0)
                os.write(descriptor, f"{_client()} {number} {until:.0f}\n".encode())
            finally:
                os.close(descriptor)
    return render(status, expires=expires)


def _client() -> str:
    """Return the id of the calling process with its start time, because process ids are reused."""
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", "rb") as file:
            # The name of the program is in parentheses, and may contain any character.
            started = file.read().rpartition(b")")[2].split()[19].decode()
    except (IndexError, OSError):
        started = ""
    return f"{parent}:{started}"


def _directory(*, create: bool = False) -> str | None:
    """Return the directory; None if it does not exist, or if other users can access it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification demands that relative paths are ignored.
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    directory = os.path.join(base, "kplane", "credentials")
    try:
        if create:
            os.makedirs(os.path.dirname(directory), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, 0o700)
        status = os.lstat(directory)
    except OSError:
        return None
    return directory if stat.S_ISDIR(status.st_mode) and _is_private(status) else None


@contextlib.contextmanager
def _private(path: str) -> Iterator[int]:
    """Open a file that only this user can access. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            raise PermissionError(f"{path} is not private")
        yield descriptor
    finally:
        os.close(descriptor)


def _is_private(found: os.stat_result) -> bool:
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _is_uid(uid: str) -> bool:
    # The uid becomes a part of a path, so it must not contain a separator.
    return 0 < len(uid) <= 64 and not frozenset(uid) - _HEX


def _path(directory: str, uid: str) -> str:
    return os.path.join(directory, uid)


def _clients_path(directory: str, uid: str) -> str:
    return os.path.join(directory, f"{uid}.clients")
