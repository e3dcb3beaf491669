"""Parses Python source in tests."""

from __future__ import annotations

import ast
import gc


def parse(source: str | bytes) -> ast.Module:
    """Parse without garbage collection in between.

    asyncio logs a failed task when it is collected. Formatting that traceback parses Python as well, and `ast.parse` of
    Python 3.11 raises SystemError if another one runs inside of it. kopf leaves such tasks to whatever test comes next.
    """
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        gc.enable()
