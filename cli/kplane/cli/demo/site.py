"""Directory of a demo: locks and empties it, and stops its processes. Refuses a directory with other files."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kplane.cli.choices import DEMO_MARKER
from kplane.cli.errors import DemoRefused
from kplane.embedded import lock
from kplane.embedded.daemon import end
from kplane.embedded.errors import DirectoryInUse

__all__ = ["default_directory", "empty", "hold", "stop"]

_LOCK: Final = ".kplane-demo-lock"
"""File that the demo locks. The daemon locks another file, later, because programs may have to be downloaded first."""
_INTERRUPT_SECONDS: Final = 120.0
_POLL_SECONDS: Final = 0.05


def default_directory() -> Path:
    """Return the directory of a demo without `--directory`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kplane" / "demo"


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[None]:
    """Lock the directory inside the block, and create it if it does not exist. Call this before `empty`.

    Raises `DemoRefused` if another demo starts or runs there, or if the directory has files of other programs.
    """
    _require_own(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / DEMO_MARKER).touch(mode=0o600)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock.hold(directory, file=_LOCK))
        except DirectoryInUse:
            raise _refused(directory, pid=lock.holder(directory, file=_LOCK) or 0) from None
        if (pid := lock.holder(directory)) is not None:
            raise _refused(directory, pid=pid)
        yield


def _refused(directory: Path, *, pid: int) -> DemoRefused:
    return DemoRefused(
        f"failed to start the demo: process {pid} already runs a demo in {directory}; "
        f"end it by `kplane demo-down --directory {directory}` (or `make demo-down`), or choose another directory"
    )


def _require_own(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()) and not (directory / DEMO_MARKER).exists():
        raise DemoRefused(f"failed to clear {directory}: it holds files that no demo wrote; choose another directory")


def empty(directory: Path) -> None:
    """Stop the processes of an earlier demo, and remove its files. The caller must `hold` the directory."""
    end(directory)
    for path in directory.iterdir():
        if path.name in {DEMO_MARKER, _LOCK}:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def stop(directory: Path) -> list[int]:
    """Interrupt a running demo command, and stop the processes of the demo.

    Return the IDs of the processes that outlived the demo's daemon. Raises `DemoRefused` if the directory has files of
    other programs, or if a demo command does not end. Raises `embedded.LeftRunning` if another process does not end.
    """
    _require_own(directory)
    _interrupt(directory)
    return end(directory)


def _interrupt(directory: Path) -> None:
    """Interrupt a running demo command, and wait until it has stopped its processes."""
    deadline, interrupted = time.monotonic() + _INTERRUPT_SECONDS, 0
    while (pid := lock.holder(directory, file=_LOCK)) is not None:
        if time.monotonic() > deadline:
            raise DemoRefused(
                f"failed to interrupt the demo in {directory}: process {pid} still runs; end it by `kill -9 {pid}`"
            )
        if pid and pid != interrupted:
            interrupted = pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        time.sleep(_POLL_SECONDS)
