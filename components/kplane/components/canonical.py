"""Canonical form of settings in a class: a change of their order alone must not replace pods."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
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
        "--strict-transport-security-directives",
        "--tls-cipher-suites",
        "--tls-curve-preferences",
        "--watch-cache-sizes",
    }
)
"""Flags with comma-separated items in any order. kube-apiserver joins the items if the flag is repeated."""

_ORDERED_LISTS: Final = frozenset(
    {
        "--admission-control",
        "--allow-metric-labels",
        "--emulated-version",
        "--kubelet-preferred-address-types",
        "--min-compatibility-version",
        "--vmodule",
    }
)
"""Other flags with several items, apart from those that kplane sets. The order of the items may count.

kube-apiserver joins the items if the flag is repeated.
"""

_BOOLEAN_ITEMS: Final = frozenset({"--feature-gates", "--runtime-config"})
"""Flags with items of the form `name=boolean`."""
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), "true"),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), "false"),
}
"""Forms of a boolean that kube-apiserver accepts (ParseBool of Go), by their canonical form."""


def canonical_flags(flags: Iterable[str]) -> tuple[str, ...]:
    """Sort flags by name, and drop repetitions. The result has the same meaning for kube-apiserver.

    Args:
        flags: Arguments of the form `--name` or `--name=value`, as in `extraArgs` of a class.
    """
    result: list[str] = []
    for name, group in groupby(sorted(flags, key=_name), key=_name):
        same = list(group)
        if name in _SETS and all(flag.startswith(f"{name}=") and '"' not in flag for flag in same):
            result.append(_joined(name, [flag.partition("=")[2] for flag in same]))
        elif name in _SETS or name in _ORDERED_LISTS:
            result.extend(flag for flag, _ in groupby(same))
        else:
            # kube-apiserver uses the last of several values. A flag without a value is a boolean.
            result.append(same[-1] if "=" in same[-1] else f"{name}=true")
    return tuple(result)


def canonical_set(items: Iterable[Any]) -> list[Any]:
    """Sort JSON values by their text, and drop repetitions."""
    return [item for item, _ in groupby(sorted(items, key=_text))]


def canonical_lists(value: Any, *, ordered: Collection[str] = (), weighted: Collection[str] = ()) -> Any:
    """Sort all lists in a JSON value as sets, except the lists of the fields in `ordered`.

    Lists of the fields in `weighted` are sorted, but keep repetitions, since each element counts.
    """

    def field(name: str, item: Any) -> Any:
        if not isinstance(item, list) or (name not in ordered and name not in weighted):
            return canonical_lists(item, ordered=ordered, weighted=weighted)
        elements = [canonical_lists(element, ordered=ordered, weighted=weighted) for element in item]
        return elements if name in ordered else sorted(elements, key=_text)

    match value:
        case dict():
            return {name: field(name, item) for name, item in value.items()}
        case list():
            return canonical_set(canonical_lists(element, ordered=ordered, weighted=weighted) for element in value)
        case _:
            return value


def _joined(name: str, values: Sequence[str]) -> str:
    """Return a flag with the items of all values. Items with equal keys keep their order: the last item may count."""
    items = [item for value in values for item in value.split(",")]
    if name in _BOOLEAN_ITEMS:
        items = [_with_canonical_boolean(item) for item in items]
    ordered = sorted(items, key=_key)
    return f"{name}={','.join(item for item, _ in groupby(ordered))}"


def _key(item: str) -> str:
    # kube-apiserver trims names, and assigns a feature without a component to kube (component-base/compatibility).
    # Sizes of watch caches have the form `resource#size`.
    return item.partition("=")[0].partition("#")[0].strip().removeprefix("kube:")


def _with_canonical_boolean(item: str) -> str:
    name, equals, value = item.partition("=")
    return f"{name}{equals}{_BOOLEANS.get(value.strip(), value)}"


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def _text(item: Any) -> str:
    return json.dumps(item, sort_keys=True)
