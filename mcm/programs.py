"""The programs that instances run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["find_programs"]


def find_programs(name: str, *, directories: Sequence[Path]) -> list[Path]:
    """Find every executable of that name, in the order of the directories."""
    candidates = dict.fromkeys(directory.absolute() / name for directory in directories)
    return [path for path in candidates if path.is_file() and os.access(path, os.X_OK)]
