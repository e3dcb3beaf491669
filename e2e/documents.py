"""Documents whose commands are run as they are written.

A block ```sh is run; ```console, ```yaml, ```text and others are for reading. A block ```yaml whose first line is
`# file: NAME` is written to that file before the blocks after it are run. There is no way to keep a block from being
run: `<!-- e2e: route: NAME -->` right before a block says that it is not for who reads from the first line to the last
one, but for who goes that route (test_document_routes.py).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Block", "blocks", "script"]

_SHELLS: Final = frozenset({"bash", "shell", "zsh"})
_COMMENT: Final = re.compile(r"\s*<!-- *e2e:")
_ROUTE: Final = re.compile(r"<!-- e2e: route: (?P<name>[a-z-]+) -->")
_HEADING: Final = re.compile(r"#+ +(?P<title>.*\S)")
_INDENTED: Final = re.compile(r"\s+```")
_FILE: Final = re.compile(r"# file: (?P<name>\S+)")
_END: Final = "END_OF_FILE_OF_DOCUMENT"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that is run or written."""

    line: int
    """Of its first line, for people."""
    section: str
    """The heading that it stands below."""
    text: str
    file: str | None
    """Name of the file that it is; None for commands."""
    route: str | None
    """The only route that it is part of; None for a block that is on every route through its section."""


def blocks(document: Path) -> Iterator[Block]:
    """Find what is to be done, in order. Raises AssertionError where something would silently not be done."""
    section, before = "", ""
    lines = iter(enumerate(document.read_text().splitlines(), start=1))
    for number, line in lines:
        place = f"{document}:{number}"
        assert not _INDENTED.match(line), f"{place}: a block in a list is not run: begin it at the start of the line"
        if not line.startswith("```"):
            heading = _HEADING.fullmatch(line)
            section = heading["title"] if heading is not None else section
            assert not _COMMENT.match(before) or not line.strip(), f"{place}: the comment before belongs to no block"
            before = line if line.strip() else before
            continue
        info, content = line.removeprefix("```").strip(), []
        for _, inner in lines:
            if inner.startswith("```"):
                break
            content.append(inner)
        else:
            raise AssertionError(f"{place}: the block has no end")
        assert info not in _SHELLS, f"{place}: write ```sh for what is run, ```console for what is shown"
        route = _ROUTE.fullmatch(before.strip())
        assert route is not None or not _COMMENT.match(before), f"{place}: write <!-- e2e: route: NAME -->"
        before = ""
        file = _FILE.fullmatch(content[0]) if info == "yaml" and content else None
        if info == "sh" or file is not None:
            yield Block(
                line=number + 1,
                section=section,
                text="\n".join([*content, ""]),
                file=file["name"] if file is not None else None,
                route=route["name"] if route is not None else None,
            )


def script(name: str, chosen: Iterable[Block]) -> str:
    """Write blocks of the document `name` as one bash script, which says where it is."""
    parts = ["set -euo pipefail\n"]
    for block in chosen:
        parts.append(f"echo {shlex.quote(f'== {name}:{block.line}')}\n")
        if block.file is not None:
            parts.append(f"cat > {shlex.quote(block.file)} <<'{_END}'\n{block.text}{_END}\n")
        else:
            parts.append(f"set -v\n{block.text}{{ set +v; }} 2>/dev/null\n")
    return "".join(parts)
