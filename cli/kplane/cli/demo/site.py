"""The directory of a demo: taken only where nothing of anybody else is in it, and removed with all that is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from kplane.cli.errors import DemoRefused
from kplane.embedded import lock
from kplane.embedded.daemon import end

__all__ = ["clear", "default_directory", "take"]

_MARKER: Final = ".kplane-demo"


def default_directory() -> Path:
    """Where a demo is kept that was not told where."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kplane" / "demo"


def take(directory: Path) -> None:
    """Make the directory a demo's, cleared of an earlier one that does not run any more.

    Raises `DemoRefused` where a demo runs there, or where files are in it that no demo wrote.
    """
    if (pid := lock.holder(directory)) is not None:
        raise DemoRefused(
            f"A demo runs over {directory} already (process {pid}). "
            f"End it with `kplane demo-down --directory {directory}` (or `make demo-down`), or take another directory."
        )
    clear(directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    (directory / _MARKER).touch(mode=0o600)


def clear(directory: Path) -> list[int]:
    """End whatever a demo has running there and remove the directory.

    Returns the processes that no daemon was left to end. Raises `DemoRefused` where the directory is not a demo's, and
    `embedded.LeftRunning` where something does not end.
    """
    if not directory.exists():
        return []
    if any(directory.iterdir()) and not (directory / _MARKER).exists():
        raise DemoRefused(f"{directory} holds files that no demo wrote; choose another directory.")
    ended = end(directory)
    shutil.rmtree(directory)
    return ended
