"""A model of how Envoy selects a route from the route configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["holds", "selected"]

Headers = Mapping[str, str]


def selected(routing: Mapping[str, Any], headers: Headers) -> dict[str, Any] | None:
    """Return the route for a request; None without a route."""
    (host,) = routing["virtual_hosts"]
    found = _matched(host["matcher"], headers)
    if found is None:
        return None
    routes: list[dict[str, Any]] = found["typed_config"]["routes"]
    return next((route for route in routes if _is_for(route["match"], headers)), None)


def _matched(matcher: Mapping[str, Any], headers: Headers) -> Mapping[str, Any] | None:
    """Return the action for a request. A nested matcher without an action has the next step decide."""
    for step in _on_matches(matcher, headers):
        action = step.get("action") or _matched(step["matcher"], headers)
        if action is not None:
            return action
    return None


def _on_matches(matcher: Mapping[str, Any], headers: Headers) -> list[Mapping[str, Any]]:
    found = []
    if "matcher_list" in matcher:
        pairs = matcher["matcher_list"]["matchers"]
        found += [pair["on_match"] for pair in pairs if holds(pair["predicate"], headers)]
    else:
        tree = matcher["matcher_tree"]
        value = headers.get(tree["input"]["typed_config"]["header_name"])
        if value is not None and "exact_match_map" in tree:
            found += [step for key, step in tree["exact_match_map"]["map"].items() if key == value]
        elif value is not None:
            steps = tree["prefix_match_map"]["map"].items()
            found += [step for key, step in sorted(steps, reverse=True) if value.startswith(key)]
    return [*found, *([matcher["on_no_match"]] if "on_no_match" in matcher else [])]


def holds(predicate: Mapping[str, Any], headers: Headers) -> bool:
    """Return whether a request matches a predicate."""
    if "and_matcher" in predicate:
        return all(holds(operand, headers) for operand in predicate["and_matcher"]["predicate"])
    if "or_matcher" in predicate:
        return any(holds(operand, headers) for operand in predicate["or_matcher"]["predicate"])
    if "not_matcher" in predicate:
        return not holds(predicate["not_matcher"], headers)
    single = predicate["single_predicate"]
    value = headers.get(single["input"]["typed_config"]["header_name"])
    return value is not None and re.fullmatch(single["value_match"]["safe_regex"]["regex"], value) is not None


def _is_for(match: Mapping[str, Any], headers: Headers) -> bool:
    path = headers[":path"]
    if "prefix" in match:
        is_path = path.startswith(match["prefix"])
    elif "path" in match:
        is_path = path.partition("?")[0] == match["path"]
    else:
        is_path = re.fullmatch(match["safe_regex"]["regex"], path.partition("?")[0]) is not None
    return is_path and all(_has(header, headers) for header in match.get("headers", ()))


def _has(matcher: Mapping[str, Any], headers: Headers) -> bool:
    value = headers.get(matcher["name"])
    if "present_match" in matcher:
        return (value is not None) is matcher["present_match"]
    if value is None:
        return False
    if "range_match" in matcher:
        return bool(matcher["range_match"]["start"] <= int(value) < matcher["range_match"]["end"])
    expected = matcher["string_match"]
    if "exact" in expected:
        return bool(value == expected["exact"])
    return re.fullmatch(expected["safe_regex"]["regex"], value) is not None
