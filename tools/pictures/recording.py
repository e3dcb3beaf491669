"""Draws a recording as an animated SVG, in which each row appears at its time. Without animation, shows the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

from tools.pictures.cast import Cast
from tools.pictures.svg import MONOSPACE, SANS, opened
from tools.pictures.terminal import Row, Screen, Style

__all__ = ["draw"]

_CHARACTER: Final = 7.8
_LINE: Final = 19
_FONT: Final = 13
_MARGIN: Final = 18
_BAR: Final = 38
_LONGEST_PAUSE: Final = 1.6
"""Maximum pause in the animation, in seconds. Longer times without output are shortened."""
_LAST_PAUSE: Final = 12.0
"""Pause before the animation begins again, in seconds."""
_COLOURS: Final[Mapping[str, str]] = {
    "red": "#ff7b72",
    "green": "#56d364",
    "yellow": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
}
_TEXT: Final = "#e6edf3"
_DIM: Final = "#9da7b3"


@dataclass(frozen=True, slots=True)
class _Shown:
    """A row between two moments of the animation. `end` is None if the row stays until the end."""

    number: int
    row: Row
    begin: float
    end: float | None


def draw(cast: Cast) -> str:
    """Return the SVG."""
    shown, total = _history(cast)
    rows = 1 + max((each.number for each in shown), default=0)
    width = round(cast.columns * _CHARACTER + 2 * _MARGIN)
    height = _BAR + rows * _LINE + _MARGIN
    return "\n".join([*_head(cast, width, height), *_body(shown, total), "</svg>", ""])


def _history(cast: Cast) -> tuple[list[_Shown], float]:
    """Return the rows with the times at which they are shown, and the duration of the animation, in seconds."""
    screen = Screen(cast.columns)
    current: dict[int, tuple[float, Row]] = {}
    ended: list[_Shown] = []
    clock, last = 0.0, 0.0
    for output in cast.outputs:
        screen.write(output.data)
        changed = [(number, row) for number, row in enumerate(screen.rows) if current.get(number, (0.0, ()))[1] != row]
        if not changed:
            continue
        clock += min(output.seconds - last, _LONGEST_PAUSE)
        last = output.seconds
        for number, row in changed:
            if number in current and current[number][1]:
                begin, before = current[number]
                ended.append(_Shown(number, before, begin, clock))
            current[number] = (clock, row)
    kept = [_Shown(number, row, begin, None) for number, (begin, row) in current.items() if row]
    return sorted(ended + kept, key=lambda each: (each.begin, each.number)), clock + _LAST_PAUSE


def _head(cast: Cast, width: int, height: int) -> Iterator[str]:
    yield from opened(cast.title, width=width, height=height)
    yield f'<rect width="{width}" height="{height}" rx="10" fill="#0d1117" stroke="#30363d"/>'
    for number, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f")):
        yield f'<circle cx="{22 + 20 * number}" cy="20" r="6" fill="{colour}"/>'
    yield (f'<text x="{width / 2:g}" y="24" text-anchor="middle" fill="{_DIM}" class="w">{escape(cast.title)}</text>')


def _body(shown: Sequence[_Shown], total: float) -> Iterator[str]:
    groups = [(times, list(rows)) for times, rows in itertools.groupby(shown, key=lambda each: (each.begin, each.end))]
    yield "<style>"
    yield f".t{{font-family:{MONOSPACE};font-size:{_FONT}px;white-space:pre}}"
    yield f".w{{font-family:{SANS};font-size:12px}}"
    yield ".o{opacity:0}"
    for number, ((begin, end), _) in enumerate(groups):
        yield f"#r{number}{{animation:k{number} {total:.2f}s step-end infinite}}"
        hidden = "" if end is None else f"{_percent(end, total)}{{opacity:0}}"
        yield f"@keyframes k{number}{{0%{{opacity:0}}{_percent(begin, total)}{{opacity:1}}{hidden}}}"
    yield "@media (prefers-reduced-motion:reduce){g{animation:none!important}}"
    yield "</style>"
    for number, ((_, end), rows) in enumerate(groups):
        yield f'<g id="r{number}"{"" if end is None else " class=" + chr(34) + "o" + chr(34)}>'
        for each in rows:
            yield from _row(each)
        yield "</g>"


def _percent(seconds: float, total: float) -> str:
    return f"{100 * seconds / total:.3f}%"


def _row(shown: _Shown) -> Iterator[str]:
    column = 0
    for style, cells in itertools.groupby(shown.row, key=lambda cell: cell.style):
        text = "".join(cell.character for cell in cells)
        begin, column = column + len(text) - len(text.lstrip(" ")), column + len(text)
        if stripped := text.strip(" "):
            yield _text(stripped, style, row=shown.number, column=begin)


def _text(text: str, style: Style, *, row: int, column: int) -> str:
    colour = _COLOURS.get(style.colour, _DIM if style.dim else _TEXT)
    bold = ' font-weight="bold"' if style.bold else ""
    return (
        f'<text class="t" x="{_MARGIN + column * _CHARACTER:g}" y="{_BAR + row * _LINE + 14}" fill="{colour}"{bold} '
        f'textLength="{len(text) * _CHARACTER:g}" xml:space="preserve">{escape(text)}</text>'
    )
