"""Limits of the body of a request: how long it may be, and how long it may pause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from typing_extensions import override

from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.requests import CARRIES, negated
from kplane.gateway.routes import Route

__all__ = [
    "WAITING_IDLE_SECONDS",
    "BodyLimit",
    "body_limit",
    "expectation",
    "idle",
    "limits_of_bodies",
    "short",
]

_LUA: Final = f"{FILTERS}.http.lua.v3"
_MUTATION: Final = f"{FILTERS}.http.header_mutation.v3"
_NAME: Final = "body-limit"
_EXPECTATION: Final = "expectation"
DELETION_SECONDS: Final = 150
"""A request that waits for its body is in no count of those in flight. The API server itself gives up after 60 s."""
WAITING_IDLE_SECONDS: Final = 150
"""Longest time without a byte of a request that waits for the authorizer.

Envoy starts the time again, by the limit of the control plane, when a byte comes, and not when the authorizer answers.
So this is longer than a wait with the work that follows.
"""
_SCRIPT: Final = """
function envoy_on_request(request)
  local body = request:body()
  if body and body:length() > request:filterContext():get("longest") then
    request:respond({[":status"] = "413"}, "")
  end
end
"""
"""Envoy's own filter for this (buffer) lets a body pass that comes as one piece with the end of the request."""


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Limits of the body of a request that changes something."""

    longest: int | None
    """Length in bytes; None for no limit."""
    idle_seconds: int
    """Longest time without a byte, from the client or to it."""

    @classmethod
    def of(cls, route: Route) -> Self:
        """Return the limits of a control plane."""
        return cls(route.limits.request_bytes, route.limits.request_idle_seconds)

    @override
    def __str__(self) -> str:
        """Return the value of the header by which the authorizer names the limits to Envoy."""
        return f"{self.longest or 'any'}/{self.idle_seconds}"


def expectation() -> Message:
    """Return the filter that has an API server answer before it has the body, if it needs no body for its answer.

    Over HTTP/1.1, an API server that refuses a user first reads a body of up to 256 KiB, for as long as that takes
    (Go's net/http). After `Expect: 100-continue`, it answers 401 at once. So no unknown user keeps a request in flight.
    """
    expect = {"append": {"header": {"key": "expect", "value": "100-continue"}, "append_action": "ADD_IF_ABSENT"}}
    mutation = typed(f"{_MUTATION}.HeaderMutation", mutations={"request_mutations": [expect]})
    skipped = {"name": "skip", "typed_config": typed("envoy.extensions.filters.common.matcher.action.v3.SkipFilter")}
    without_body = {"predicate": negated(CARRIES), "on_match": {"action": skipped}}
    matching = typed(
        "envoy.extensions.common.matching.v3.ExtensionWithMatcher",
        extension_config={"name": _EXPECTATION, "typed_config": mutation},
        xds_matcher={"matcher_list": {"matchers": [without_body]}},
    )
    return {"name": _EXPECTATION, "typed_config": matching}


def idle(seconds: int) -> Message:
    """Return the part of a route that ends a request after this time without a byte: 408, or 504 if it is complete."""
    return {"route": {"idle_timeout": f"{seconds}s"}}


def body_limit() -> Message:
    """Return the filter. It waits for the bodies of those requests whose route says so, and for no others."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", source_codes={_NAME: {"inline_string": _SCRIPT}})}


def short(longest: int) -> tuple[Message, Message]:
    """Return the parts of two routes. One of them takes a request whose body may pass.

    A deletion needs no body, and then no `Content-Length`. Whether it has one shows when the body comes. Such a body
    has to fit into the buffer of its connection: Envoy itself answers 413 above that.
    """
    length = {"name": "content-length", "range_match": {"start": 0, "end": longest + 1}}
    deletion = {"name": ":method", "string_match": {"exact": "DELETE"}}
    unsaid = {"name": "content-length", "present_match": False}
    counted = typed(f"{_LUA}.LuaPerRoute", name=_NAME, filter_context={"longest": longest})
    return (
        {"match": {"headers": [length]}},
        {
            "match": {"headers": [deletion, unsaid]},
            "route": {"max_stream_duration": {"max_stream_duration": f"{DELETION_SECONDS}s"}},
            "typed_per_filter_config": {_NAME: counted},
        },
    )


def limits_of_bodies(routes: Iterable[Route]) -> frozenset[BodyLimit]:
    """Return the limits that there are, for the table of routes: a request that waits keeps the table of its begin."""
    return frozenset(BodyLimit.of(route) for route in routes if not route.host)
