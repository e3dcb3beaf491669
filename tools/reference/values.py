"""Writes values.md: the values of the chart, with the comments of values.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tools.reference.markdown import code, escaped, page, table
from tools.reference.sources import ROOT

__all__ = ["Value", "read_values", "values"]

_CHART: Final = ROOT / "deploy" / "chart" / "kplane"
_KEY: Final = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z][\w-]*):(?P<rest>.*)")
_COMMENT: Final = re.compile(r"(?P<indent> *)# ?(?P<text>.*)")
_DOCUMENT: Final = re.compile(r"docs/(?P<path>[\w/-]+)\.md")


@dataclass(slots=True)
class Value:
    """A key of values.yaml: a mapping of other keys, or a key with a default."""

    path: tuple[str, ...]
    comment: Sequence[str]
    """Lines of the comment, without the signs; an indented line is code."""
    default: Any = None
    inside: list[Value] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the value, as in `--set`."""
        return ".".join(self.path)


def values() -> str:
    """Return the page."""
    read = read_values((_CHART / "values.yaml").read_text())
    schema = json.loads((_CHART / "values.schema.json").read_text())
    alone = [value for value in read if not value.inside]
    parts = [part for value in read if value.inside for part in _section(value, schema=schema)]
    return page(
        "Values of the chart",
        "This page lists the values of the Helm chart, with their defaults. Set them with `--values` or `--set`.",
        "`values.schema.json` of the chart refuses values that are not listed here. Values with an empty default are"
        " not set.",
        table(["value", "default", "accepts", "meaning"], (_row(value, schema=schema) for value in alone)),
        *parts,
    )


def read_values(text: str) -> list[Value]:
    """Read the keys with the comments right above them.

    A comment belongs to no key if a blank line follows.
    """
    defaults = yaml.safe_load(text)
    top: list[Value] = []
    open_: list[tuple[int, Value]] = []
    comment: list[str] = []
    for line in text.splitlines():
        if comment_line := _COMMENT.fullmatch(line):
            comment.append(comment_line["text"])
            continue
        key = _KEY.fullmatch(line)
        if key is None:
            comment = [] if not line.strip() else comment
            continue
        indent = len(key["indent"])
        while open_ and open_[-1][0] >= indent:
            open_.pop()
        if open_ and not isinstance(open_[-1][1].default, dict):
            continue
        path = (*(open_[-1][1].path if open_ else ()), key["key"])
        value = Value(path, comment, default=_at(defaults, path))
        (open_[-1][1].inside if open_ else top).append(value)
        open_.append((indent, value))
        comment = []
    return top


def _at(document: Any, path: Sequence[str]) -> Any:
    for key in path:
        document = document[key]
    return document


def _section(value: Value, *, schema: Mapping[str, Any], level: int = 2) -> Iterator[str]:
    """Yield a heading, the comment and the table of a mapping.

    Sections of the mappings in it that have a comment follow.
    """
    yield f"{'#' * level} {value.name}"
    yield from _prose(value.comment)
    rows, sections = [], []
    for inner in value.inside:
        if inner.inside and inner.comment and level < 4:
            sections.append(inner)
        else:
            rows += [_row(leaf, schema=schema) for leaf in _leaves(inner)]
    yield "\n".join(table(["value", "default", "accepts", "meaning"], rows)) if rows else ""
    for inner in sections:
        yield from _section(inner, schema=schema, level=level + 1)


def _leaves(value: Value) -> Iterator[Value]:
    if not value.inside:
        yield value
    for inner in value.inside:
        yield from _leaves(inner)


def _row(value: Value, *, schema: Mapping[str, Any]) -> list[str]:
    default = value.default if isinstance(value.default, str) else json.dumps(value.default)
    shown = "" if value.default in ("", [], {}, None) else code(default)
    return [code(value.name), shown, _accepts(schema, value.path), _meaning(value, schema=schema)]


def _meaning(value: Value, *, schema: Mapping[str, Any]) -> str:
    """Return the comment, with an example of a list as code; without a comment, the description in the schema."""
    begins = next((number for number, line in enumerate(value.comment) if line.startswith("- ")), len(value.comment))
    text = " ".join(_linked(line) for line in value.comment[:begins])
    if example := "\n".join(value.comment[begins:]):
        text += (
            f" Example: {code(yaml.safe_dump(yaml.safe_load(example), default_flow_style=True, width=1000).strip())}"
        )
    return text or str(_schema_of(schema, value.path).get("description", ""))


def _prose(lines: Sequence[str]) -> Iterator[str]:
    """Yield paragraphs, and blocks for lines that are indented."""
    text: list[str] = []
    shown: list[str] = []
    for line in [*lines, ""]:
        if line.startswith("  "):
            shown.append(line.removeprefix("  "))
            continue
        if shown:
            yield " ".join(text)
            yield "\n".join(["```console", *shown, "```"])
            text, shown = [], []
        if line:
            text.append(escaped(_linked(line)))
    if text:
        yield " ".join(text)


def _linked(text: str) -> str:
    """Replace the paths of documents in a comment by links."""
    return _DOCUMENT.sub(lambda found: f"[{Path(found['path']).name}](../{found['path']}.md)", text)


def _accepts(schema: Mapping[str, Any], path: Sequence[str]) -> str:
    """Return the type or the words that the schema accepts, for readers."""
    subschema = _schema_of(schema, path)
    if "enum" in subschema:
        return ", ".join(code(str(word)) for word in subschema["enum"] if word != "")
    types = subschema.get("type", "")
    named = " or ".join(types) if isinstance(types, list) else str(types)
    least, most = subschema.get("minimum"), subschema.get("maximum")
    if least is not None and most is not None:
        return f"{named}, {least} to {most}"
    return f"{named}, at least {least}" if least is not None else named


def _schema_of(schema: Mapping[str, Any], path: Sequence[str]) -> Mapping[str, Any]:
    subschema: Mapping[str, Any] = schema
    for key in path:
        subschema = _resolved(schema, subschema).get("properties", {}).get(key, {})
    return _resolved(schema, subschema)


def _resolved(schema: Mapping[str, Any], found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve a reference into `$defs`."""
    reference = str(found.get("$ref", "")).removeprefix("#/$defs/")
    return {**schema["$defs"][reference], **found} if reference else found
