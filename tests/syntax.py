"""Parses Python source in tests."""

from __future__ import annotations

import ast
import gc


def parse(source: str | bytes) -> ast.Module:
    """Parse with garbage collection disabled.

    asyncio logs a failed task when it is collected. Formatting that traceback parses Python as well, and `ast.parse` of
    Python 3.11 raises SystemError if a second call runs inside the first. Tests of kopf leave such tasks behind.
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()
