"""Reads the commands of documents, which the suite runs.

The suite runs each block ```sh. Blocks ```console, ```yaml, ```text and others are for reading. The suite writes a
block ```yaml that begins with `# file: NAME` to that file. `<!-- e2e: route: NAME -->` before a block moves the block
from the main route to route NAME (routes.py). Each block ```sh runs on a route, or on an operator that runs processes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["DOCUMENTS", "ON_PROCESSES", "Block", "all_documents", "blocks", "document", "script"]

DOCUMENTS: Final = (
    "how-to/install",
    "how-to/first-tenant",
    "how-to/expose",
    "how-to/production-checklist",
    "how-to/harden",
    "how-to/look-inside",
    "how-to/monitor",
    "how-to/backup-shared-etcd",
    "how-to/restore-shared-etcd",
    "how-to/move-controllers",
    "how-to/retained-data",
    "how-to/storage",
    "how-to/drain-nodes",
    "how-to/leaked-kubeconfig",
    "troubleshoot/lost-credentials",
    "how-to/upgrade",
    "how-to/upgrade-kubernetes",
    "how-to/roll-back",
    "troubleshoot/index",
    "troubleshoot/installation",
    "troubleshoot/tenant-access",
    "troubleshoot/no-controllers",
    "troubleshoot/shared-etcd",
    "how-to/uninstall",
)
"""Documents with commands of the main route, in its order: paths in docs/, without `.md`."""

ON_PROCESSES: Final = ("how-to/backup", "how-to/restore", "how-to/clone")
"""Documents whose commands an integration test runs, in this order, on an operator that runs processes.

The commands need storage for snapshots, which the clusters of the suite lack.
"""

_DOCS: Final = Path(__file__).resolve().parents[1] / "docs"
_SHELLS: Final = frozenset({"bash", "shell", "zsh"})
_COMMENT: Final = re.compile(r"\s*<!-- *e2e:")
_ROUTE: Final = re.compile(r"<!-- e2e: route: (?P<name>[a-z-]+) -->")
_HEADING: Final = re.compile(r"#+ +(?P<title>.*\S)")
_INDENTED: Final = re.compile(r"\s+```")
_FILE: Final = re.compile(r"# file: (?P<name>\S+)")
_END: Final = "END_OF_FILE_OF_DOCUMENT"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that the suite runs, or writes to a file."""

    line: int
    """Number of the block's first line in the document."""
    section: str
    """Heading above the block."""
    text: str
    file: str | None
    """Name of the file that the block is written to; None for commands."""
    route: str | None
    """The only route that runs the block; None for a block of all routes through its section."""


def document(name: str) -> Path:
    """Return the file of the document `name`, such as `how-to/install`."""
    return _DOCS / f"{name}.md"


def all_documents() -> list[str]:
    """Return the names of all documents, sorted."""
    return sorted(str(path.relative_to(_DOCS).with_suffix("")) for path in _DOCS.rglob("*.md"))


def blocks(path: Path) -> Iterator[Block]:
    """Yield the blocks of a document in order. Raises AssertionError if the suite would skip a block silently."""
    section, before = "", ""
    lines = iter(enumerate(path.read_text().splitlines(), start=1))
    for number, line in lines:
        place = f"{path}:{number}"
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
    """Return a bash script of blocks of the document `name`. The script prints the line of each block before it."""
    parts = ["set -euo pipefail\n"]
    for block in chosen:
        parts.append(f"echo {shlex.quote(f'== {name}:{block.line}')}\n")
        if block.file is not None:
            parts.append(f"cat > {shlex.quote(block.file)} <<'{_END}'\n{block.text}{_END}\n")
        else:
            parts.append(f"set -v\n{block.text}{{ set +v; }} 2>/dev/null\n")
    return "".join(parts)
