"""Conditions of objects as they are stored: with many objects, no model is made to read one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kplane.controlplane_operator.watch.cache import Object

__all__ = ["stored_condition"]


def stored_condition(obj: Object | None, type: str) -> Mapping[str, Any]:  # noqa: A002 - upstream's word
    """Return the condition of that type; an empty one where there is no object, or none of that type."""
    status = (obj or {}).get("status") or {}
    return next((each for each in status.get("conditions") or () if each["type"] == type), {})
