"""Finds the fatal line of a log: the line in which a program gives the reason for its end."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["last_fatal_line"]

_SHOWN_LETTERS: Final = 500
_FATAL: Final = re.compile(
    r"\[critical\]\[(?!backtrace)"  # Envoy; a backtrace follows
    r"|^(panic|fatal error): "  # Go; the stacks of goroutines follow
    r"|^F[0-9]{4} |\"command failed\" err="  # klog, k8s.io/component-base/cli
    r'|"level":"(fatal|panic)"'  # zap, as etcd has it
    r"|^Error: | CRITICAL "  # cobra, and Python's logging
)
"""Patterns of the lines that programs write before they end by themselves."""


def last_fatal_line(log: str) -> str:
    """Return the last fatal line of a log, at most 500 characters of it; empty if the log has no such line."""
    line = next((line for line in reversed(log.splitlines()) if _FATAL.search(line)), "")
    return line.strip()[:_SHOWN_LETTERS]
