"""Conditions in the status of objects; their writers are not trusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_false", "is_true", "section"]


def section(obj: object, *path: str) -> Mapping[str, Any]:
    """Return the mapping at `path` of an object; an empty one if there is none."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj if isinstance(obj, Mapping) else {}


def is_true(obj: Mapping[str, Any], condition: str) -> bool:
    """Tell whether `status.conditions` has this type with status True."""
    return _status(obj, condition) == "True"


def is_false(obj: Mapping[str, Any], condition: str) -> bool:
    """Tell whether `status.conditions` has this type with status False."""
    return _status(obj, condition) == "False"


def _status(obj: Mapping[str, Any], condition: str) -> object:
    conditions = section(obj, "status").get("conditions")
    for entry in conditions if isinstance(conditions, list) else ():
        if isinstance(entry, Mapping) and entry.get("type") == condition:
            return entry.get("status")
    return None
