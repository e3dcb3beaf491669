"""Conditions of stored objects, read without a model, because there may be many objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kplane.controlplane_operator.watch.cache import Object

__all__ = ["stored_condition"]


def stored_condition(obj: Object | None, type: str) -> Mapping[str, Any]:  # noqa: A002 - upstream's word
    """Return the condition of this type; an empty mapping if the object or the condition is missing."""
    status = (obj or {}).get("status") or {}
    return next((condition for condition in status.get("conditions") or () if condition["type"] == type), {})
