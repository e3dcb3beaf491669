"""What a route says of its control plane, for filters, answers and the log."""

from __future__ import annotations

from typing import Final

from kplane.gateway.envoy.messages import Message
from kplane.gateway.routes import Route

__all__ = ["LIMITED_BY", "LONGEST_BODY", "TENANT", "UNKNOWN_TO", "described", "longest_body", "path_to", "shown"]

TENANT: Final = "tenant"
UNKNOWN_TO: Final = "unknown-to"
"""In the place of `TENANT` for requests whose token may be made up: they take none of its limits."""
LIMITED_BY: Final = "limited-by"
LONGEST_BODY: Final = "longest-body"
"""In bytes, of requests that change something."""
_NAMESPACE: Final = "kplane"


def described(route: Route, *, known: bool) -> Message:
    """Return the metadata of the routes of a control plane. `known`: of requests with a good token."""
    whose = TENANT if known else UNKNOWN_TO
    return _metadata({whose: route.key, LIMITED_BY: route.limits.set_by, **_longest(route.limits.request_bytes)})


def longest_body(limit: int) -> Message:
    """Return the metadata of routes of several control planes whose bodies have this limit in bytes."""
    return _metadata(_longest(limit))


def path_to(key: str) -> Message:
    """Return where a filter finds one of these."""
    return {"key": _NAMESPACE, "path": [{"key": key}]}


def shown(key: str) -> str:
    """Return one of these as a word of Envoy's formats."""
    return f"%METADATA(ROUTE:{_NAMESPACE}:{key})%"


def _longest(limit: int | None) -> dict[str, str]:
    # A text, because Envoy's formats write numbers of metadata as floats.
    return {LONGEST_BODY: str(limit)} if limit is not None else {}


def _metadata(entries: dict[str, str]) -> Message:
    return {"filter_metadata": {_NAMESPACE: entries}}
