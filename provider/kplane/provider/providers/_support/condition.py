"""Conditions in the status of objects; their writers are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_false", "is_true", "section"]


def section(found: object, *path: str) -> Mapping[str, Any]:
    """Return the mapping at `path` of an object; an empty one if there is none."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_true(found: Mapping[str, Any], condition: str) -> bool:
    """Tell whether `status.conditions` has this type with status True."""
    return _status(found, condition) == "True"


def is_false(found: Mapping[str, Any], condition: str) -> bool:
    """Tell whether `status.conditions` has this type with status False."""
    return _status(found, condition) == "False"


def _status(found: Mapping[str, Any], condition: str) -> object:
    conditions = section(found, "status").get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping) and each.get("type") == condition:
            return each.get("status")
    return None
