"""JSON patches (RFC 6902) between two states of an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["carried", "difference"]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the operations that change `before` to `after`. Lists that differ are replaced entirely."""
    return list(_operations(before, after, at=""))


def _operations(before: Mapping[str, Any], after: Mapping[str, Any], *, at: str) -> Iterator[dict[str, Any]]:
    for key in before.keys() - after.keys():
        yield {"op": "remove", "path": _pointer(at, key)}
    for key, value in after.items():
        path = _pointer(at, key)
        if key not in before:
            yield {"op": "add", "path": path, "value": value}
        elif isinstance(value, dict) and isinstance(before[key], dict):
            yield from _operations(before[key], value, at=path)
        elif not _equal(before[key], value):
            yield {"op": "replace", "path": path, "value": value}


def carried(whole: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return `whole` with what changed from `before` to `after`, which have only a part of its fields."""
    result = dict(whole)
    for key in before.keys() | after.keys():
        if key not in after:
            result.pop(key, None)
        elif key not in before or not _equal(before[key], after[key]):
            known, former, new = whole.get(key), before.get(key), after[key]
            if isinstance(known, dict) and isinstance(former, dict) and isinstance(new, dict):
                result[key] = carried(known, former, new)
            else:
                result[key] = new
    return result


def _pointer(at: str, key: str) -> str:
    """Return a JSON pointer (RFC 6901)."""
    return f"{at}/{key.replace('~', '~0').replace('/', '~1')}"


def _equal(value: object, other: object) -> bool:
    # In Python 1 == True == 1.0; in JSON these three values differ.
    if type(value) is not type(other):
        return False
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_equal, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(_equal(value[key], other[key]) for key in value)
    return value == other
