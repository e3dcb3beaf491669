"""Conditions in the status of objects, which others wrote as they liked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_false", "is_true", "section"]


def section(found: object, *path: str) -> Mapping[str, Any]:
    """The mapping at `path` of an object; an empty one if there is none, or something else."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_true(found: Mapping[str, Any], condition: str) -> bool:
    """Whether `status.conditions` has one of that type whose status is True."""
    return _status(found, condition) == "True"


def is_false(found: Mapping[str, Any], condition: str) -> bool:
    """Whether `status.conditions` has one of that type whose status is False."""
    return _status(found, condition) == "False"


def _status(found: Mapping[str, Any], condition: str) -> object:
    conditions = section(found, "status").get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping) and each.get("type") == condition:
            return each.get("status")
    return None
