"""What a route says of its control plane, for filters, answers and the log."""

from __future__ import annotations

from typing import Final

from kplane.gateway.envoy.messages import Message
from kplane.gateway.routes import Route

__all__ = ["LIMITED_BY", "TENANT", "described", "path_to", "shown"]

TENANT: Final = "tenant"
LIMITED_BY: Final = "limited-by"
_NAMESPACE: Final = "kplane"


def described(route: Route) -> Message:
    """Return the metadata of the routes of a control plane."""
    return {"filter_metadata": {_NAMESPACE: {TENANT: route.key, LIMITED_BY: route.limits.set_by}}}


def path_to(key: str) -> Message:
    """Return where a filter finds one of these."""
    return {"key": _NAMESPACE, "path": [{"key": key}]}


def shown(key: str) -> str:
    """Return one of these as a word of Envoy's formats."""
    return f"%METADATA(ROUTE:{_NAMESPACE}:{key})%"
