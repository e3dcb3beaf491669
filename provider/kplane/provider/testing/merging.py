"""Merges and compares objects by their `Shape`, as structured-merge-diff does for a kube-apiserver."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from dataclasses import field as default
from typing import Any, Final

import orjson

from kplane.provider.errors import api_error
from kplane.provider.testing.fields import Path, field, item_key, item_value
from kplane.provider.testing.shapes import Shape

__all__ = ["Comparison", "compared", "equal", "leaves", "merged", "with_parents", "without"]

_MISSING: Final = object()


@dataclass(slots=True)
class Comparison:
    """The fields in which two objects differ."""

    added: set[Path] = default(default_factory=set)
    modified: set[Path] = default(default_factory=set)
    removed: set[Path] = default(default_factory=set)


def equal(one: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON: in Python, 1 equals true."""
    return orjson.dumps(one, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)


def leaves(value: Any, shape: Shape, *, above: Path = ()) -> set[Path]:
    """Return the fields that an object names."""
    found: set[Path] = set()
    if isinstance(value, dict) and not shape.atomic:
        for key, each in value.items():
            path = (*above, field(key))
            found |= leaves(each, shape.at(key), above=path)
            if each is None or each == {} or not shape.has_field(key):
                found.add(path)
    elif isinstance(value, list) and shape.keys is not None:
        for element, items in _by_element(value, shape).items():
            path = (*above, element)
            found.add(path)
            if len(items) == 1:
                found |= leaves(items[0], shape.item, above=path)
    else:
        found.add(above)
    return found


def compared(old: Any, new: Any, shape: Shape) -> Comparison:
    """Return the fields in which two objects differ."""
    found = Comparison()
    _compare(old, new, shape, (), found)
    return found


def _compare(old: Any, new: Any, shape: Shape, path: Path, into: Comparison) -> None:
    # A value that changes its form, such as from a map to a text, is compared in both.
    for form in dict.fromkeys(_form(each) for each in (old, new) if each is not _MISSING):
        if form is dict and not shape.atomic and (_non_empty(old, dict) or _non_empty(new, dict)):
            olds, news = _non_empty(old, dict), _non_empty(new, dict)
            for key in olds.keys() | news.keys():
                below = (*path, field(key))
                _compare(olds.get(key, _MISSING), news.get(key, _MISSING), shape.at(key), below, into)
        elif form is list and shape.keys is not None and (_non_empty(old, list) or _non_empty(new, list)):
            _compare_items(_non_empty(old, list), _non_empty(new, list), shape, path, into)
        elif old is not _MISSING and new is not _MISSING and not equal(old, new):
            into.modified.add(path)
    if old is _MISSING:
        into.added.add(path)
    elif new is _MISSING:
        into.removed.add(path)


def _compare_items(old: list[Any], new: list[Any], shape: Shape, path: Path, into: Comparison) -> None:
    olds, news = _by_element(old, shape), _by_element(new, shape)
    for element in olds.keys() | news.keys():
        before, after, below = olds.get(element, []), news.get(element, []), (*path, element)
        if len(before) > 1 and len(after) > 1:
            if not equal(before, after):
                into.modified.add(below)
            continue
        # Items with the same keys have one owner together.
        if len(before) > 1:
            into.removed.add(below)
        elif len(after) > 1:
            into.added.add(below)
        one, other = (each[0] if len(each) == 1 else _MISSING for each in (before, after))
        if one is not _MISSING or other is not _MISSING:
            _compare(one, other, shape.item, below, into)


def merged(live: Any, config: Any, shape: Shape) -> Any:
    """Return an object with what a configuration says of it; nothing is removed."""
    form = _form(live if config is _MISSING else config)
    if form is dict and not shape.atomic and (_non_empty(live, dict) or _non_empty(config, dict)):
        lives, configs = _non_empty(live, dict), _non_empty(config, dict)
        return {
            key: merged(lives.get(key, _MISSING), configs.get(key, _MISSING), shape.at(key))
            for key in {**lives, **configs}
        }
    if form is list and shape.keys is not None and (_non_empty(live, list) or _non_empty(config, list)):
        return _merged_lists(_non_empty(live, list), _non_empty(config, list), shape)
    return live if config is _MISSING else config


def _merged_lists(live: list[Any], config: list[Any], shape: Shape) -> list[Any]:
    """Merge items with the same keys, in the order of the configuration; others stay where they were among them."""
    lives, configs = _by_element(live, shape), _by_element(config, shape)
    if twice := [element for element, items in configs.items() if len(items) > 1]:
        raise api_error(500, "InternalError", f"failed to create typed patch object: duplicate entries for key {twice}")
    left = [(_element(each, shape), each) for each in live]
    right = list(configs)
    shared = [element for element in right if element in lives]
    found, done = [], set[str]()

    def take(element: str) -> None:
        before = lives.get(element, [_MISSING])
        # Of duplicates none is merged.
        found.append(merged(before[0] if len(before) == 1 else None, configs[element][0], shape.item))
        done.add(element)
        if shared and shared[0] == element:
            del shared[0]

    while left or right:
        if left and right:
            element = left[0][0]
            if element == right[0]:
                del left[0]
                take(right.pop(0))
                continue
            if element in configs and shared and shared[0] != element:
                del left[0]
                continue
        if left:
            element, each = left[0]
            if element not in configs:
                found.append(each)
                del left[0]
                continue
            if element in done:
                del left[0]
        if right:
            take(right.pop(0))
    return found


def without(value: Any, paths: Collection[Path], shape: Shape) -> Any:
    """Return an object without some fields; None if nothing is left of it."""
    if isinstance(value, dict):
        if shape.atomic:
            return None
        kept: dict[str, Any] = {}
        for key, each in value.items():
            element = field(key)
            if (element,) not in paths:
                below = _below(paths, element)
                kept[key] = without(each, below, shape.at(key)) if below else each
        return kept or None
    if isinstance(value, list):
        if shape.keys is None:
            return None
        items = []
        for each in value:
            element = _element(each, shape)
            if (element,) not in paths:
                below = _below(paths, element)
                items.append(without(each, below, shape.item) if below else each)
        return items or None
    return value


def with_parents(paths: Collection[Path], shape: Shape) -> set[Path]:
    """Return fields together with those above them that are fields of a struct."""
    found = set(paths)
    for path in paths:
        inner = shape
        for length, element in enumerate(path[:-1], start=1):
            if not element.startswith("f:"):
                inner = inner.item
                continue
            if inner.has_field(element[2:]):
                found.add(path[:length])
            inner = inner.at(element[2:])
    return found


def _below(paths: Collection[Path], element: str) -> set[Path]:
    return {path[1:] for path in paths if len(path) > 1 and path[0] == element}


def _form(value: Any) -> type:
    """Return what a value is merged as; null as a map."""
    return dict if value is None or isinstance(value, dict) else list if isinstance(value, list) else str


def _non_empty(value: Any, form: type) -> Any:
    return value if isinstance(value, form) else form()


def _by_element(items: list[Any], shape: Shape) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for each in items:
        found.setdefault(_element(each, shape), []).append(each)
    return found


def _element(item: Any, shape: Shape) -> str:
    if not shape.keys:
        return item_value(item)
    known = shape.defaults | (item if isinstance(item, dict) else {})
    keys = {key: known[key] for key in shape.keys if key in known}
    if not keys:
        raise api_error(500, "InternalError", f"an item of {shape.name} has none of the keys {', '.join(shape.keys)}")
    return item_key(keys)
