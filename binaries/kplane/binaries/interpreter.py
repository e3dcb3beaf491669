"""Command lines that run a module with this interpreter.

Python puts the working directory first on its path for `-m`. A file `string.py` in the folder of a user would then
replace the standard module `string`. So every process of kplane starts with a command line of this module.
"""

from __future__ import annotations

import sys

__all__ = ["inheriting_command", "module_command"]


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs an installed module, without the working directory and without PYTHONPATH.

    All PYTHON* variables are ignored. Packages of the user's own site directory are still found.
    """
    return [sys.executable, "-E", "-P", "-m", module, *arguments]


def inheriting_command(module: str, *arguments: str) -> list[str]:
    """Return the command line that runs a module without the working directory, on the inherited PYTHONPATH."""
    return [sys.executable, "-P", "-m", module, *arguments]
