"""The line of a log by which a program says why it ends."""

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
"""What programs write before they end by themselves."""


def last_fatal_line(log: str) -> str:
    """Return the last line of a log by which a program says why it ends; empty if there is none."""
    line = next((line for line in reversed(log.splitlines()) if _FATAL.search(line)), "")
    return line.strip()[:_SHOWN_LETTERS]
