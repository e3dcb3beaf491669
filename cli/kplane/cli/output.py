"""Output of commands: tables for people, JSON, YAML and names for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import typer

from kplane.cli.printable import printable, printable_lines

__all__ = ["Format", "age", "print_objects", "print_row", "print_table", "print_text"]

_GAP = "   "
_COLOURS = {
    "Ready": "green",
    "True": "green",
    "Completed": "green",
    "Hibernated": "blue",
    "Warning": "yellow",
    "warning": "yellow",
    "error": "red",
    "awake": "green",
    "asleep": "blue",
    "Failed": "red",
    "Unavailable": "red",
    "False": "red",
}


class Format(StrEnum):
    """Values of `--output`."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def print_text(text: str, *, highlighted: str = "", nl: bool = True) -> None:
    """Print text of any number of lines. `highlighted` is a phase or a status in the text, coloured on a terminal."""
    safe = printable_lines(text)
    typer.echo(safe.replace(highlighted, _coloured(highlighted), 1) if highlighted else safe, nl=nl)


def print_objects(kind: str, objects: Sequence[dict[str, Any]], *, form: Format, single: bool = False) -> None:
    """Print objects as JSON, YAML or names. A single object is printed alone, several as a List."""
    if form is Format.NAME:
        for obj in objects:
            print_text(f"{kind}/{obj['metadata']['name']}")
        return
    content: Any = objects[0] if single else {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    if form is Format.JSON:
        import json

        print_text(json.dumps(content, indent=2))
    else:
        import yaml

        print_text(yaml.safe_dump(content, sort_keys=False), nl=False)


def print_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns as kubectl does, with colours only on a terminal."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(heads), *cells]) for column in range(len(heads))]
    typer.echo(_line(heads, widths))
    for row in cells:
        typer.echo(_line(row, widths, colours=True))


def print_row(row: Sequence[object], *, widths: Sequence[int]) -> None:
    """Print a row of a table before all rows are known. A cell that is wider than its column shifts the others."""
    typer.echo(_line([_cell(value) for value in row], widths, colours=True))


def _coloured(text: str) -> str:
    """Return a phase or a status, coloured if the output is a terminal."""
    colour = _COLOURS.get(text)
    return typer.style(text, fg=colour) if colour is not None and sys.stdout.isatty() else text


def age(since: datetime | None) -> str:
    """Return the age of a time, as kubectl does: 42s, 7m, 3h, 12d."""
    if since is None:
        return ""
    seconds = max(0, int((datetime.now(UTC) - since).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _cell(value: object) -> str:
    return "" if value is None else printable(str(value))


def _line(row: Sequence[str], widths: Sequence[int], *, colours: bool = False) -> str:
    padded = [
        (_coloured(text) if colours else text) + " " * (width - len(text))
        for text, width in zip(row, widths, strict=True)
    ]
    return _GAP.join(padded).rstrip()
