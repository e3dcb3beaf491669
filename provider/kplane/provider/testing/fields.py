"""Sets of fields in the format of managedFields."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

__all__ = ["Path", "decoded", "encoded", "field", "item_key", "item_value", "shown", "shown_order"]

Path = tuple[str, ...]
"""Path of a field: the elements that lead to it, such as `("f:metadata", "f:finalizers", 'v:"example.com/a"')`."""


def field(name: str) -> str:
    """Return the element for a key of a map."""
    return f"f:{name}"


def item_key(keys: dict[str, Any]) -> str:
    """Return the element for a list item with these keys."""
    return f"k:{orjson.dumps(keys, option=orjson.OPT_SORT_KEYS).decode()}"


def item_value(value: Any) -> str:
    """Return the element for an item of a set."""
    return f"v:{orjson.dumps(value).decode()}"


def encoded(paths: Iterable[Path]) -> dict[str, Any]:
    """Return fieldsV1: a tree, in which `.` marks a field of the set that has nested fields in the set."""
    tree: dict[str, Any] = {}
    for element, group in itertools.groupby(sorted(paths), key=lambda path: path[0]):
        rest = {path[1:] for path in group}
        below = encoded(rest - {()})
        tree[element] = {".": {}, **below} if below and () in rest else below
    return tree


def decoded(fields: dict[str, Any], *, above: Path = ()) -> Iterator[Path]:
    """Yield the fields of fieldsV1. Raises ValueError for an invalid tree."""
    for element, below in fields.items():
        if element == ".":
            continue
        if element[:2] not in {"f:", "k:", "v:", "i:"} or not isinstance(below, dict):
            raise ValueError(f"{element!r} is no element of fieldsV1")
        path = (*above, element)
        if not below or "." in below:
            yield path
        yield from decoded(below, above=path)


def shown(path: Path) -> str:
    """Return the name of a field in conflicts: `.spec.containers[name="app"].image`."""
    return "".join(map(_shown_element, path))


def _shown_element(element: str) -> str:
    kind, rest = element[:2], element[2:]
    if kind == "k:":
        keys = orjson.loads(rest).items()
        return f"[{','.join(f'{name}={orjson.dumps(value).decode()}' for name, value in keys)}]"
    return f".{rest}" if kind == "f:" else f"[={rest}]"


def shown_order(path: Path) -> tuple[tuple[bool, str], ...]:
    """Return a sort key for the order of fields in conflicts: fields of a map come before nested fields."""
    return tuple((index < len(path) - 1, element) for index, element in enumerate(path))
