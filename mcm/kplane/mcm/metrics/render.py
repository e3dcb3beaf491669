"""Prometheus' text format: samples of many processes under one name each, told apart by labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

__all__ = ["Families", "Sample", "read_samples"]

_SAMPLE: Final = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)"
    r"(?:\{(?P<labels>(?:[a-zA-Z_][a-zA-Z0-9_]*=\"(?:[^\"\\]|\\.)*+\",?)*+)\})?"
    r"[ \t]+(?P<value>[^ \t]+)"
)
_LABEL: Final = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*)=\"((?:[^\"\\]|\\.)*+)\"")
_COMMENT: Final = re.compile(r"# (?P<what>HELP|TYPE) (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?: .*)?")
_SUFFIXES: Final = ("_bucket", "_count", "_sum", "_total", "_created")


class Sample(NamedTuple):
    """One line; `labels` as they are written."""

    name: str
    labels: str
    value: str

    def label(self, name: str) -> str | None:
        """Return the value of a label, still with its escapes; None where there is none."""
        return next((found[2] for found in _LABEL.finditer(self.labels) if found[1] == name), None)


def read_samples(lines: Iterable[str]) -> Iterator[Sample]:
    """Read the samples; what is none is passed over."""
    for line in lines:
        if not line.startswith("#") and (found := _SAMPLE.match(line)) is not None:
            yield Sample(found["name"], found["labels"] or "", found["value"])


@dataclass(slots=True)
class _Family:
    head: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


class Families:
    """Collects what several processes say, so that each metric is described once and its samples are together.

    A parser of the format may refuse a text in which they are not.
    """

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(self, lines: Iterable[str], *, labels: Mapping[str, str] = MappingProxyType({})) -> None:
        """Take the lines of one process, and give each sample these labels.

        A label such as `cluster` that a sample has already becomes `exported_cluster`, as Prometheus does it.
        """
        current = ""
        for line in lines:
            if comment := _COMMENT.fullmatch(line):
                current = comment["name"]
                self._family(current).head.setdefault(comment["what"], line)
            elif not line.startswith("#") and (found := _SAMPLE.match(line)) is not None:
                name, own = found["name"], found["labels"] or ""
                written = _with(own, labels=labels) if labels else own
                shown = f"{{{written}}}" if written else ""
                self._family(current if _belongs(name, to=current) else name).lines.append(
                    f"{name}{shown} {found['value']}"
                )

    def render(self) -> bytes:
        """Return the text. Metrics without samples are left out."""
        lines: list[str] = []
        for family in self._families.values():
            if family.lines:
                lines.extend(family.head[what] for what in ("HELP", "TYPE") if what in family.head)
                lines.extend(family.lines)
        return "".join(f"{line}\n" for line in lines).encode()

    def _family(self, name: str) -> _Family:
        return self._families.setdefault(name, _Family())


def _belongs(name: str, *, to: str) -> bool:
    return name == to or any(name == f"{to}{suffix}" for suffix in _SUFFIXES)


def _with(own: str, *, labels: Mapping[str, str]) -> str:
    others = [
        f'{f"exported_{found[1]}" if found[1] in labels else found[1]}="{found[2]}"' for found in _LABEL.finditer(own)
    ]
    return ",".join([*(f'{name}="{_escaped(value)}"' for name, value in labels.items()), *others])


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
