"""Emulates a terminal, as far as the programs of this repository use its features."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

__all__ = ["Cell", "Row", "Screen", "Style"]

_PARTS: Final = re.compile(
    r"\x1b\[(?P<arguments>[?0-9;]*)(?P<command>[A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"
    r"|(?P<control>[\r\n\t\b])|(?P<text>[^\x1b\r\n\t\b]+)"
)
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[?0-9;]*|\][^\x07\x1b]*\x1b?)?\Z")
_OF_PALETTES: Final = {5: 1, 2: 3}
"""Number of arguments after 38;5 (a colour by its number) and 38;2 (a colour by red, green and blue)."""
_SPINNER: Final = re.compile("[\u2800-\u28ff]")
_TAB: Final = 8
_COLOURS: Final = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


@dataclass(frozen=True, slots=True)
class Style:
    """Style of characters."""

    colour: str = ""
    bold: bool = False
    dim: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A character on the screen."""

    character: str
    style: Style


Row = tuple[Cell, ...]
_BLANK: Final = Cell(" ", Style())


class Screen:
    """Rows of cells. The screen grows instead of scrolling, so that all output stays."""

    def __init__(self, columns: int) -> None:
        """Create an empty screen."""
        self._columns = columns
        self._rows: list[list[Cell]] = [[]]
        self._row = self._column = 0
        self._style = Style()
        self._unfinished = ""

    @property
    def rows(self) -> Iterator[Row]:
        """Yield the rows from the top, each without blanks at its end."""
        for row in self._rows:
            kept = len(row)
            while kept and row[kept - 1].character == " ":
                kept -= 1
            yield tuple(row[:kept])

    def write(self, data: str) -> None:
        """Execute the data as a terminal does. The frames of a spinner are shown as the same character.

        An escape sequence may begin in a piece of data and end in the next piece.
        """
        data = self._unfinished + data
        begun = _UNFINISHED.search(data)
        self._unfinished = begun[0] if begun else ""
        for part in _PARTS.finditer(_SPINNER.sub("•", data.removesuffix(self._unfinished))):
            if text := part["text"]:
                self._print(text)
            elif control := part["control"]:
                self._control(control)
            elif command := part["command"]:
                self._command(command, part["arguments"])

    def _print(self, text: str) -> None:
        for character in text:
            if self._column == self._columns:
                self._control("\n")
                self._column = 0
            row = self._rows[self._row]
            row += [_BLANK] * (self._column + 1 - len(row))
            row[self._column] = Cell(character, self._style)
            self._column += 1

    def _control(self, character: str) -> None:
        if character == "\r":
            self._column = 0
        elif character == "\b":
            self._column = max(0, self._column - 1)
        elif character == "\t":
            self._column = min(self._column // _TAB * _TAB + _TAB, self._columns - 1)
        else:
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append([])

    def _command(self, command: str, arguments: str) -> None:
        if command == "m":
            numbers = (int(argument or 0) for argument in arguments.lstrip("?").split(";"))
            for number in numbers:
                self._style = _changed(self._style, number)
                if number in {38, 48}:
                    # Palette colours are not drawn. Their arguments are no styles.
                    for _ in range(_OF_PALETTES.get(next(numbers, 0), 0)):
                        next(numbers, None)
            return
        count = int(arguments) if arguments.isdecimal() else 0
        row = self._rows[self._row]
        if command == "A":
            self._row = max(0, self._row - max(1, count))
        elif command == "K":
            del row[0 if count == 2 else self._column :]


def _changed(style: Style, number: int) -> Style:
    match number:
        case 0:
            return Style()
        case 1:
            return replace(style, bold=True)
        case 2:
            return replace(style, dim=True)
        case 22:
            return replace(style, bold=False, dim=False)
        case _ if 30 <= number <= 37:
            return replace(style, colour=_COLOURS[number - 30])
        case _ if 90 <= number <= 97:
            return replace(style, colour=_COLOURS[number - 90])
        case 39:
            return replace(style, colour="")
        case _:
            return style
