"""Conditions of stored objects, read without a model, because there may be many objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kplane.api.conditions import RUNNING
from kplane.controlplane_operator.watch.cache import Object

__all__ = ["refused_since", "stored_condition"]

_CREDENTIALS_REFUSED: Final = "CredentialsRefused"
"""A reason of mcm."""


def stored_condition(obj: Object | None, type: str) -> Mapping[str, Any]:  # noqa: A002 - upstream's word
    """Return the condition of this type; an empty mapping if the object or the condition is missing."""
    status = (obj or {}).get("status") or {}
    return next((condition for condition in status.get("conditions") or () if condition["type"] == type), {})


def refused_since(registration: Object | None) -> str | None:
    """Return since when mcm has reported that the control plane refuses its controllers; None if it does not."""
    running = stored_condition(registration, RUNNING)
    return str(running.get("lastTransitionTime")) if running.get("reason") == _CREDENTIALS_REFUSED else None
