"""Refusals by quota and body limit: clients without a verified credential get 401, as at other paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest

from kplane.gateway.envoy.names import (
    BODY_HEADER,
    FULL_HEADER,
    KNOWN_HEADER,
    TENANT_HEADER,
    UNKNOWN_HEADER,
    UPSTREAM_HEADER,
)
from kplane.gateway.envoy.replies import FULL, TOO_LONG
from kplane.gateway.envoy.routing import routing
from kplane.gateway.routes import Hold, Limits, Route

from .fleet import route
from .route_table import selected

LIMITS = Limits(set_by="ControlPlaneClass small", request_bytes=1000)
FULL_ROUTE = dataclasses.replace(route("full"), full=True)
LIMITED_ROUTE = dataclasses.replace(route("limited"), limits=LIMITS)
HELD_ROUTE = dataclasses.replace(route("held"), limits=LIMITS, held=Hold(until=datetime.now(UTC), asked="now"))

_CLUSTER = "by cluster"
_ASKED = "by authorizer"


def _answer(
    served: Route, headers: Mapping[str, str] = MappingProxyType({}), *, length: int = 2000, method: str = "POST"
) -> int | str:
    """Return the code of the response, or whether a cluster or the authorizer decides."""
    name = served.cluster_path
    request = {
        ":method": method,
        ":path": f"/clusters/{name}/control-plane/api/v1/namespaces/default/configmaps",
        "authorization": "Bearer x",
        "content-type": "application/json",
        "content-length": str(length),
    }
    found: Any = selected(routing([served]), {**request, **headers})
    if "direct_response" in found:
        return int(found["direct_response"]["status"])
    is_decided = UPSTREAM_HEADER in headers or "cluster" in found["route"]
    return _CLUSTER if is_decided else _ASKED


def _authorized(served: Route, *, verified: bool, full: bool = False) -> dict[str, str]:
    """Return headers that the authorizer adds to a request which it lets pass."""
    counts_for = TENANT_HEADER if verified else UNKNOWN_HEADER
    longest = served.limits.request_bytes or "any"
    body = f"{longest}/{served.limits.request_idle_seconds}"
    return {
        counts_for: served.key,
        UPSTREAM_HEADER: f"{served.key}/changes",
        BODY_HEADER: body,
        **({FULL_HEADER: "true"} if full else {}),
    }


@pytest.mark.parametrize(
    ("served", "code"), [(FULL_ROUTE, FULL), (LIMITED_ROUTE, TOO_LONG)], ids=["storage quota", "body limit"]
)
def test_refusal_depends_on_verified_credential(served: Route, code: int) -> None:
    is_full = served.full
    assert _answer(served, {KNOWN_HEADER: "true"}) == code
    assert _answer(served) == _ASKED
    assert _answer(served, _authorized(served, verified=True, full=is_full)) == code
    assert _answer(served, _authorized(served, verified=False, full=is_full)) == 401


def test_held_control_plane_refuses_long_body_of_verified_client_only() -> None:
    assert _answer(HELD_ROUTE) == _ASKED
    assert _answer(HELD_ROUTE, _authorized(HELD_ROUTE, verified=True)) == TOO_LONG
    assert _answer(HELD_ROUTE, _authorized(HELD_ROUTE, verified=False)) == 401
    assert _answer(HELD_ROUTE, _authorized(HELD_ROUTE, verified=False), length=1000) == _CLUSTER


def test_accepted_change_with_unverified_token_reaches_api_server() -> None:
    assert _answer(LIMITED_ROUTE, length=1000) == _CLUSTER
    assert _answer(FULL_ROUTE, method="DELETE") == _CLUSTER
    assert _answer(route("plain")) == _CLUSTER


def test_change_reaches_api_server_after_quota_was_raised() -> None:
    """The authorizer knows the new quota before Envoy does."""
    assert _answer(FULL_ROUTE, _authorized(FULL_ROUTE, verified=True)) == _CLUSTER


def test_refusal_after_authorizer_names_limit_once() -> None:
    """The response contains the origin of the limit from the route, then from the authorizer."""
    request = {":method": "POST", ":path": "/clusters/limited/control-plane/api", "authorization": "Bearer x"}
    request |= {"content-length": "2000"} | _authorized(LIMITED_ROUTE, verified=True)
    found: Any = selected(routing([LIMITED_ROUTE]), request)
    assert found["metadata"]["filter_metadata"]["kplane"] == {"longest-body": "1000"}
