"""Draws boxes and arrows as an SVG, from a description in TOML.

    title = "What the picture shows"
    size = [860, 400]

    [box.acme]
    at = [20, 40]            # the upper left corner
    size = [160, 70]
    kind = "accent"          # plain, accent, group, asleep
    title = "acme"
    lines = ["kube-apiserver", "$code"]

    [[arrow]]
    from = "acme.right"      # a side, and how far along it, as in right:0.25
    to = "etcd.left"
    label = "data"
    kind = "plain"           # plain, dashed

An arrow is straight, or has two corners.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

from tools.pictures.svg import MONOSPACE, SANS, opened

__all__ = ["draw"]

_LINE: Final = 17
_STRAIGHT: Final = 1
"""Ends that differ by less are joined without a corner."""
_FONTS: Final = (
    f"text{{font-family:{SANS};font-size:12.5px;fill:#424a53}}\n.code{{font-family:{MONOSPACE};font-size:12px}}"
)
_STYLE: Final = Path(__file__).with_name("diagram.css").read_text().strip()
_HEAD: Final = '<path class="head" d="M0 0L10 5L0 10z"/>'
_MARKER: Final = (
    'id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto-start-reverse"'
)

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Box:
    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str
    lines: Sequence[str]

    def side(self, name: str, share: float) -> Point:
        """Return a point of the border."""
        match name:
            case "left" | "right":
                return self.x + (self.width if name == "right" else 0), self.y + share * self.height
            case "top" | "bottom":
                return self.x + share * self.width, self.y + (self.height if name == "bottom" else 0)
            case _:
                raise ValueError(f"failed to draw an arrow: {name} is no side of a box")


def draw(description: str) -> str:
    """Return the SVG. Raises ValueError or KeyError if the description is wrong."""
    about = tomllib.loads(description)
    width, height = about["size"]
    boxes = {name: _box(box_table) for name, box_table in about["box"].items()}
    parts = [
        *opened(about["title"], width=width, height=height),
        f"<style>\n{_FONTS}\n{_STYLE}\n</style>",
        f"<defs><marker {_MARKER}>{_HEAD}</marker></defs>",
        f'<rect class="paper" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
    ]
    for box in boxes.values():
        parts += _drawn(box)
    for arrow in about.get("arrow", []):
        parts += _arrow(arrow, boxes)
    return "\n".join([*parts, "</svg>", ""])


def _box(about: Mapping[str, Any]) -> _Box:
    (x, y), (width, height) = about["at"], about["size"]
    return _Box(x, y, width, height, about.get("kind", "plain"), about.get("title", ""), about.get("lines", []))


def _drawn(box: _Box) -> Iterator[str]:
    yield (
        f'<rect class="{box.kind}" x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="7" '
        'stroke-width="1.3"/>'
    )
    if box.kind == "group":
        yield f'<text class="title" x="{box.x + 12}" y="{box.y + 21}">{escape(box.title)}</text>'
        return
    texts = [("title", box.title)] if box.title else []
    texts += [("code", line[1:]) if line.startswith("$") else ("", line) for line in box.lines]
    y = box.y + (box.height - len(texts) * _LINE) / 2 + 12.5
    for number, (kind, text) in enumerate(texts):
        yield _text(text, box.x + box.width / 2, y + number * _LINE, kind=kind)


def _text(text: str, x: float, y: float, *, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


def _arrow(about: Mapping[str, Any], boxes: Mapping[str, _Box]) -> Iterator[str]:
    begin, side = _end(about["from"], boxes)
    end, _ = _end(about["to"], boxes)
    points = _way(begin, end, horizontal=side in {"left", "right"})
    path = "L".join(f"{x:g} {y:g}" for x, y in points)
    kind = " dashed" if about.get("kind") == "dashed" else ""
    yield f'<path class="line{kind}" d="M{path}" marker-end="url(#head)"/>'
    (from_x, from_y), (to_x, to_y) = points[len(points) // 2 - 1 : len(points) // 2 + 1]
    x, y = (from_x + to_x) / 2, (from_y + to_y) / 2
    if label := about.get("label"):
        vertical = abs(from_x - to_x) < abs(from_y - to_y)
        yield _text(
            label,
            x + 7 if vertical else x,
            y + 4 if vertical else y - 7,
            kind="label",
            anchor="start" if vertical else "middle",
        )


def _end(name: str, boxes: Mapping[str, _Box]) -> tuple[Point, str]:
    box, _, side = name.partition(".")
    side, _, share = side.partition(":")
    return boxes[box].side(side, float(share or 0.5)), side


def _way(begin: Point, end: Point, *, horizontal: bool) -> list[Point]:
    """Return a straight line, or a line with two corners half-way."""
    (from_x, from_y), (to_x, to_y) = begin, end
    if abs(from_x - to_x) < _STRAIGHT or abs(from_y - to_y) < _STRAIGHT:
        return [begin, end]
    if horizontal:
        middle = (from_x + to_x) / 2
        return [begin, (middle, from_y), (middle, to_y), end]
    middle = (from_y + to_y) / 2
    return [begin, (from_x, middle), (to_x, middle), end]
