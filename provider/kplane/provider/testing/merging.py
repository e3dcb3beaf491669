"""Merge and comparison of objects by their `Shape`, as structured-merge-diff does for a kube-apiserver."""

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


def equal(value: Any, other: Any) -> bool:
    """Tell whether two values are the same JSON, in which 1 and true differ."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS) == orjson.dumps(other, option=orjson.OPT_SORT_KEYS)


def leaves(value: Any, shape: Shape, *, above: Path = ()) -> set[Path]:
    """Return the fields that an object sets."""
    paths: set[Path] = set()
    if isinstance(value, dict) and not shape.atomic:
        for key, content in value.items():
            path = (*above, field(key))
            paths |= leaves(content, shape.at(key), above=path)
            if content is None or content == {} or not shape.has_field(key):
                paths.add(path)
    elif isinstance(value, list) and shape.keys is not None:
        for element, items in _by_element(value, shape).items():
            path = (*above, element)
            paths.add(path)
            if len(items) == 1:
                paths |= leaves(items[0], shape.item, above=path)
    else:
        paths.add(above)
    return paths


def compared(old: Any, new: Any, shape: Shape) -> Comparison:
    """Return the fields in which two objects differ."""
    comparison = Comparison()
    _compare(old, new, shape, (), comparison)
    return comparison


def _compare(old: Any, new: Any, shape: Shape, path: Path, into: Comparison) -> None:
    # A value that changes its form, such as from a map to a string, is compared in both forms.
    for form in dict.fromkeys(_form(value) for value in (old, new) if value is not _MISSING):
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
        # Items with the same keys have a common owner.
        if len(before) > 1:
            into.removed.add(below)
        elif len(after) > 1:
            into.added.add(below)
        old_item, new_item = (items[0] if len(items) == 1 else _MISSING for items in (before, after))
        if old_item is not _MISSING or new_item is not _MISSING:
            _compare(old_item, new_item, shape.item, below, into)


def merged(live: Any, config: Any, shape: Shape) -> Any:
    """Return an object with the fields of a configuration. The merge removes no field."""
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
    """Merge items with the same keys, in the order of the configuration. Other live items keep their places."""
    lives, configs = _by_element(live, shape), _by_element(config, shape)
    if twice := [element for element, items in configs.items() if len(items) > 1]:
        raise api_error(500, "InternalError", f"failed to create typed patch object: duplicate entries for key {twice}")
    left = [(_element(item, shape), item) for item in live]
    right = list(configs)
    shared = [element for element in right if element in lives]
    result, done = [], set[str]()

    def take(element: str) -> None:
        before = lives.get(element, [_MISSING])
        # Live items with the same keys are not merged.
        result.append(merged(before[0] if len(before) == 1 else None, configs[element][0], shape.item))
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
            element, item = left[0]
            if element not in configs:
                result.append(item)
                del left[0]
                continue
            if element in done:
                del left[0]
        if right:
            take(right.pop(0))
    return result


def without(value: Any, paths: Collection[Path], shape: Shape) -> Any:
    """Return an object without some fields; None if no field is left."""
    if isinstance(value, dict):
        if shape.atomic:
            return None
        kept: dict[str, Any] = {}
        for key, content in value.items():
            element = field(key)
            if (element,) not in paths:
                below = _below(paths, element)
                kept[key] = without(content, below, shape.at(key)) if below else content
        return kept or None
    if isinstance(value, list):
        if shape.keys is None:
            return None
        items = []
        for item in value:
            element = _element(item, shape)
            if (element,) not in paths:
                below = _below(paths, element)
                items.append(without(item, below, shape.item) if below else item)
        return items or None
    return value


def with_parents(paths: Collection[Path], shape: Shape) -> set[Path]:
    """Return fields, and the fields of structs that contain them."""
    result = set(paths)
    for path in paths:
        inner = shape
        for length, element in enumerate(path[:-1], start=1):
            if not element.startswith("f:"):
                inner = inner.item
                continue
            if inner.has_field(element[2:]):
                result.add(path[:length])
            inner = inner.at(element[2:])
    return result


def _below(paths: Collection[Path], element: str) -> set[Path]:
    return {path[1:] for path in paths if len(path) > 1 and path[0] == element}


def _form(value: Any) -> type:
    """Return the type as which a value is merged: dict, list, or str for scalars. Null counts as a map."""
    return dict if value is None or isinstance(value, dict) else list if isinstance(value, list) else str


def _non_empty(value: Any, form: type) -> Any:
    return value if isinstance(value, form) else form()


def _by_element(items: list[Any], shape: Shape) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for item in items:
        grouped.setdefault(_element(item, shape), []).append(item)
    return grouped


def _element(item: Any, shape: Shape) -> str:
    if not shape.keys:
        return item_value(item)
    content = shape.defaults | (item if isinstance(item, dict) else {})
    keys = {key: content[key] for key in shape.keys if key in content}
    if not keys:
        raise api_error(500, "InternalError", f"an item of {shape.name} has none of the keys {', '.join(shape.keys)}")
    return item_key(keys)
