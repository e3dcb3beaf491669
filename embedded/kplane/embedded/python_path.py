"""Sets PYTHONPATH for child processes, so that they import this `kplane`, installed or not."""

from __future__ import annotations

import os
from pathlib import Path

import kplane

__all__ = ["python_path"]


def python_path() -> str:
    """Return a PYTHONPATH: the directories that hold a part of `kplane`, then the present value."""
    directories = [str(Path(part).resolve().parent) for part in kplane.__path__]
    return os.pathsep.join(filter(None, [*directories, os.environ.get("PYTHONPATH")]))
