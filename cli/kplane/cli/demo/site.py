"""Takes and removes the directory of a demo. Refuses a directory with other files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from kplane.cli.errors import DemoRefused
from kplane.embedded import lock
from kplane.embedded.daemon import end

__all__ = ["clear", "default_directory", "is_demo", "take"]

_MARKER: Final = ".kplane-demo"


def default_directory() -> Path:
    """Return the directory of a demo that was started without `--directory`."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kplane" / "demo"


def is_demo(directory: Path) -> bool:
    """Whether a demo keeps its data in a directory."""
    return (directory / _MARKER).exists()


def take(directory: Path) -> None:
    """Prepare the directory for a demo, and clear it of an earlier demo that has ended.

    Raises `DemoRefused` if a demo runs there, or if it holds files that no demo wrote.
    """
    if (pid := lock.holder(directory)) is not None:
        raise DemoRefused(
            f"failed to start the demo: process {pid} already runs a demo in {directory}; "
            f"end it by `kplane demo-down --directory {directory}` (or `make demo-down`), or choose another directory"
        )
    clear(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / _MARKER).touch(mode=0o600)


def clear(directory: Path) -> list[int]:
    """End the processes of a demo, and remove its directory.

    Returns the processes that outlived the demo's daemon. Raises `DemoRefused` if no demo wrote the directory, and
    `embedded.LeftRunning` if a process does not end.
    """
    if not directory.exists():
        return []
    if any(directory.iterdir()) and not (directory / _MARKER).exists():
        raise DemoRefused(f"failed to clear {directory}: it holds files that no demo wrote; choose another directory")
    ended = end(directory)
    shutil.rmtree(directory)
    return ended
