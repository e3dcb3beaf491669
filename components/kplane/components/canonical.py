"""One form for settings of a class that mean the same, so that a change of their order replaces no pods."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, Final

__all__ = ["canonical_flags", "canonical_lists", "canonical_set"]

_SETS: Final = frozenset(
    {
        "--api-audiences",
        "--cors-allowed-origins",
        "--disabled-metrics",
        "--enable-admission-plugins",
        "--feature-gates",
        "--runtime-config",
        "--tls-cipher-suites",
    }
)
"""Flags with items between commas whose order means nothing. kube-apiserver joins the items if the flag is repeated.

All others are kept as they are written: kube-apiserver uses the last of several values, or a list in its order.
"""


def canonical_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """Sort flags by name, and drop repetitions. The result means the same to kube-apiserver.

    Args:
        flags: Arguments with `--name` or `--name=value`, as `extraArgs` of a class has them.
    """
    result: list[str] = []
    for name, group in groupby(sorted(flags, key=_name), key=_name):
        same = list(group)
        if name in _SETS and all(flag.startswith(f"{name}=") and '"' not in flag for flag in same):
            result.append(_joined(name, [flag.partition("=")[2] for flag in same]))
        else:
            # Of different values the last one may count, so only neighbours that are equal become one.
            result.extend(flag for flag, _ in groupby(same))
    return tuple(result)


def canonical_set(items: Iterable[Any]) -> list[Any]:
    """Sort JSON values by their text, and drop repetitions."""
    return [item for item, _ in groupby(sorted(items, key=_text))]


def canonical_lists(value: Any, *, ordered: Sequence[str]) -> Any:
    """Sort all lists in a JSON value as sets, except those of fields whose order counts."""
    match value:
        case dict():
            return {
                name: [canonical_lists(each, ordered=ordered) for each in item]
                if name in ordered
                else canonical_lists(item, ordered=ordered)
                for name, item in value.items()
            }
        case list():
            return canonical_set(canonical_lists(each, ordered=ordered) for each in value)
        case _:
            return value


def _joined(name: str, values: Sequence[str]) -> str:
    """Return one flag with all items. Items with the same key keep their order, because the last of them may count."""
    items = [item for value in values for item in value.split(",")]
    ordered = sorted(items, key=_key)
    return f"{name}={','.join(item for item, _ in groupby(ordered))}"


def _key(item: str) -> str:
    # kube-apiserver trims names, and takes a feature without a component as one of kube (component-base/compatibility).
    return item.partition("=")[0].strip().removeprefix("kube:")


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def _text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)
