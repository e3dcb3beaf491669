"""Conditions in the status of objects, which others wrote as they liked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_true", "section"]


def section(found: object, *path: str) -> Mapping[str, Any]:
    """The mapping at `path` of an object; an empty one where there is none, or something else."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def is_true(found: Mapping[str, Any], condition: str) -> bool:
    """Whether `status.conditions` has one of that type whose status is True."""
    conditions = section(found, "status").get("conditions")
    return any(
        isinstance(each, Mapping) and each.get("type") == condition and each.get("status") == "True"
        for each in (conditions if isinstance(conditions, list) else ())
    )
