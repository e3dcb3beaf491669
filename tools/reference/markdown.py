"""Makes Markdown: pages, tables and cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

__all__ = ["GENERATED", "cell", "code", "escaped", "page", "table"]

GENERATED: Final = "<!-- Written by `make generate` from the code: change the code instead. -->"
"""The first line of each generated page."""


def page(title: str, *parts: str | Iterable[str]) -> str:
    """Return a page. Each part is a paragraph, or the lines of a block."""
    blocks = [part if isinstance(part, str) else "\n".join(part) for part in parts]
    return "\n\n".join([GENERATED, f"# {title}", *(block for block in blocks if block)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table. The cells are Markdown."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(cell(text) for text in row)} |"


def cell(text: str) -> str:
    """Return text in a single line, with escaped vertical bars, so that they do not end the cell."""
    return escaped(" ".join(text.split())).replace("\\|", "|").replace("|", "\\|")


def code(text: str) -> str:
    """Return text as a code span; empty text stays empty."""
    if not text:
        return ""
    fence = "``" if "`" in text else "`"
    room = " " if "`" in text else ""
    return f"{fence}{room}{text}{room}{fence}"


def escaped(text: str) -> str:
    """Escape words such as <NAME>, which are no HTML, outside of code spans."""
    parts = text.split("`")
    return "`".join(part if number % 2 else part.replace("<", "&lt;") for number, part in enumerate(parts))
