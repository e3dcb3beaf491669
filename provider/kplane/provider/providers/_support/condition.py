"""Reads of conditions in the status of objects from untrusted writers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_false", "is_true", "section"]


def section(obj: object, *path: str) -> Mapping[str, Any]:
    """Return the mapping at `path` of an object; an empty mapping if it is missing or of another type."""
    for key in path:
        obj = obj.get(key) if isinstance(obj, Mapping) else None
    return obj if isinstance(obj, Mapping) else {}


def is_true(obj: Mapping[str, Any], condition: str) -> bool:
    """Tell whether a condition of the type `condition` has the status True."""
    return _status(obj, condition) == "True"


def is_false(obj: Mapping[str, Any], condition: str) -> bool:
    """Tell whether a condition of the type `condition` has the status False."""
    return _status(obj, condition) == "False"


def _status(obj: Mapping[str, Any], condition: str) -> object:
    conditions = section(obj, "status").get("conditions")
    for entry in conditions if isinstance(conditions, list) else ():
        if isinstance(entry, Mapping) and entry.get("type") == condition:
            return entry.get("status")
    return None
