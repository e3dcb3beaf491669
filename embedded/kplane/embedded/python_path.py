"""Sets PYTHONPATH for child processes, so that they import this `kplane`, even if it is not installed."""

from __future__ import annotations

import os
from pathlib import Path

import kplane

__all__ = ["python_path"]


def python_path() -> str:
    """Return a PYTHONPATH: the directories that hold a part of `kplane`, then the entries of the present value.

    Empty entries are omitted, because Python reads them as the working directory. A relative entry becomes absolute.
    """
    directories = [str(Path(part).resolve().parent) for part in kplane.__path__]
    present = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join([*directories, *(str(Path(entry).absolute()) for entry in present)])
