"""Label selectors with the syntax of the API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from kplane.provider.errors import ProviderError

__all__ = ["Matches", "parse_label_selector"]

Matches = Callable[[Mapping[str, str]], bool]

_KEY: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_EXISTS: Final = re.compile(rf"(!?)\s*({_KEY})")
_EQUALS: Final = re.compile(rf"({_KEY})\s*(==|=|!=)\s*({_VALUE})")
_AMONG: Final = re.compile(rf"({_KEY})\s+(in|notin)\s*\(([^()]*)\)")
_COMMA: Final = re.compile(r",(?![^(]*\))")


def parse_label_selector(selector: str) -> Matches:
    """Return a function that tells whether labels match: `a=b,c!=d,e in (f,g),h notin (i),j,!k`; empty matches all.

    An object without the label matches `!=` and `notin`. Raises ProviderError for an invalid selector; `<` and `>`
    are not supported.
    """
    if not selector.strip():
        return lambda _labels: True
    requirements = [_requirement(part.strip(), selector) for part in _COMMA.split(selector)]
    return lambda labels: all(matches(labels) for matches in requirements)


def _requirement(part: str, selector: str) -> Matches:
    if found := _EXISTS.fullmatch(part):
        absent, key = bool(found[1]), found[2]
        return lambda labels: (key not in labels) is absent
    if found := _EQUALS.fullmatch(part):
        return _value_in(found[1], frozenset({found[3]}), wanted=found[2] != "!=")
    if found := _AMONG.fullmatch(part):
        values = frozenset(value.strip() for value in found[3].split(","))
        if found[3].strip() and all(re.fullmatch(_VALUE, value) for value in values):
            return _value_in(found[1], values, wanted=found[2] == "in")
    raise ProviderError(
        f"{part!r} in the label selector {selector!r} cannot be read: write key=value, key!=value, key in (a,b),"
        " key notin (a,b), key or !key"
    )


def _value_in(key: str, values: frozenset[str], *, wanted: bool) -> Matches:
    return lambda labels: (labels.get(key) in values) is wanted
