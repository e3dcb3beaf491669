"""Metadata of routes about their control plane, for filters, responses and the access log."""

from __future__ import annotations

from typing import Final

from kplane.gateway.envoy.messages import Message
from kplane.gateway.routes import Route

__all__ = ["LIMITED_BY", "LONGEST_BODY", "TENANT", "UNKNOWN_TO", "described", "longest_body", "path_to", "shown"]

TENANT: Final = "tenant"
UNKNOWN_TO: Final = "unknown-to"
"""Key in place of `TENANT` for requests with an unverified token, which do not count for the limits of the control
plane.
"""
LIMITED_BY: Final = "limited-by"
LONGEST_BODY: Final = "longest-body"
"""Maximum body of a mutating request in bytes."""
_NAMESPACE: Final = "kplane"


def described(route: Route, *, known: bool) -> Message:
    """Return the metadata of routes of a control plane. `known` is True for requests with a verified token."""
    whose = TENANT if known else UNKNOWN_TO
    return _metadata({whose: route.key, LIMITED_BY: route.limits.set_by, **_longest(route.limits.request_bytes)})


def longest_body(limit: int) -> Message:
    """Return the metadata of routes that control planes with this body limit (in bytes) share."""
    return _metadata(_longest(limit))


def path_to(key: str) -> Message:
    """Return the path to a metadata key, for filters."""
    return {"key": _NAMESPACE, "path": [{"key": key}]}


def shown(key: str) -> str:
    """Return the command for a metadata key, for format strings of Envoy."""
    return f"%METADATA(ROUTE:{_NAMESPACE}:{key})%"


def _longest(limit: int | None) -> dict[str, str]:
    # Use a string, since format strings of Envoy write numbers in metadata as floats.
    return {LONGEST_BODY: str(limit)} if limit is not None else {}


def _metadata(entries: dict[str, str]) -> Message:
    return {"filter_metadata": {_NAMESPACE: entries}}
