"""Documents whose commands are run as they are written.

A block ```sh is run; ```console, ```yaml, ```text and others are for reading. A block ```yaml whose first line is
`# file: NAME` is written to that file before the blocks after it are run. `<!-- e2e: skip: REASON -->` right before a
block keeps it from being run, where no test could.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Block", "blocks", "script"]

_SHELLS: Final = frozenset({"bash", "shell", "zsh"})
_SKIP: Final = re.compile(r"<!-- e2e: skip: *(?P<reason>.*?) *-->")
_FILE: Final = re.compile(r"# file: (?P<name>\S+)")
_END: Final = "END_OF_FILE_OF_DOCUMENT"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that is run or written."""

    line: int
    """Of its first line, for people."""
    text: str
    file: str | None
    """Name of the file that it is; None for commands."""


def blocks(document: Path) -> Iterator[Block]:
    """Find what is to be done, in order. Raises AssertionError where something would silently not be done."""
    before = ""
    lines = iter(enumerate(document.read_text().splitlines(), start=1))
    for number, line in lines:
        if not line.startswith("```"):
            before = line if line.strip() else before
            continue
        info, content = line.removeprefix("```").strip(), []
        for _, inner in lines:
            if inner.startswith("```"):
                break
            content.append(inner)
        else:
            raise AssertionError(f"{document}:{number}: the block has no end")
        assert info not in _SHELLS, f"{document}:{number}: write ```sh for what is run, ```console for what is shown"
        skip, before = _SKIP.fullmatch(before.strip()), ""
        if skip is not None:
            assert skip["reason"], f"{document}:{number}: say why the block is not run"
            continue
        file = _FILE.fullmatch(content[0]) if info == "yaml" and content else None
        if info == "sh" or file is not None:
            yield Block(number + 1, "\n".join([*content, ""]), file["name"] if file is not None else None)


def script(document: Path) -> str:
    """Write all of it as one bash script, which says where it is."""
    parts = ["set -euo pipefail\n"]
    for block in blocks(document):
        parts.append(f"echo {shlex.quote(f'== {document.name}:{block.line}')}\n")
        if block.file is not None:
            parts.append(f"cat > {shlex.quote(block.file)} <<'{_END}'\n{block.text}{_END}\n")
        else:
            parts.append(f"set -v\n{block.text}{{ set +v; }} 2>/dev/null\n")
    return "".join(parts)
