"""Limits of request bodies: maximum length, and maximum pause."""

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
"""Maximum seconds of a deletion whose body the filter counts. While the filter waits for the body, no count of requests
in flight includes the request. The API server itself gives up after 60 s.
"""
WAITING_IDLE_SECONDS: Final = 150
"""Maximum seconds without a byte of a request that waits for the authorizer.

The limit of the control plane applies from the next byte after the authorizer's response, and not from the response. So
this limit is longer than a wait and the processing that follows.
"""
_SCRIPT: Final = """
function envoy_on_request(request)
  local body = request:body()
  if body and body:length() > request:filterContext():get("longest") then
    request:respond({[":status"] = "413"}, "")
  end
end
"""
"""Envoy's own filter for this purpose (buffer) accepts any body that arrives in a single piece with the end of the
request.
"""


@dataclass(frozen=True, slots=True)
class BodyLimit:
    """Limits of the body of a mutating request."""

    longest: int | None
    """Maximum length in bytes; None for no limit."""
    idle_seconds: int
    """Maximum seconds without a byte in either direction."""

    @classmethod
    def of(cls, route: Route) -> Self:
        """Return the body limits of a control plane."""
        return cls(route.limits.request_bytes, route.limits.request_idle_seconds)

    @override
    def __str__(self) -> str:
        """Return the value of the header by which the authorizer names the limits to Envoy."""
        return f"{self.longest or 'any'}/{self.idle_seconds}"


def expectation() -> Message:
    """Return the filter that adds `Expect: 100-continue`, so that an API server can respond before it has the body.

    Over HTTP/1.1, an API server reads up to 256 KiB of a body before it refuses a user, without a time limit (Go's
    net/http). After `Expect: 100-continue`, the API server responds with 401 at once. So no unknown user can keep a
    request in flight.
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
    """Return the part of a route that ends a request after this time without a byte.

    The response is 408, or 504 if the request is complete.
    """
    return {"route": {"idle_timeout": f"{seconds}s"}}


def body_limit() -> Message:
    """Return the filter that counts bodies. It reads only the bodies of requests whose route enables it."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", source_codes={_NAME: {"inline_string": _SCRIPT}})}


def short(longest: int) -> tuple[Message, Message]:
    """Return parts of two routes for requests whose body has at most `longest` bytes.

    The first route is for requests with a `Content-Length`. The second route is for deletions without this header: the
    filter counts the body as it arrives. Such a body must fit into the buffer of its connection, above which Envoy
    responds with 413.
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
    """Return the distinct body limits of all routes by path.

    A request that waits keeps the route configuration with which it began. So this configuration must contain all
    limits.
    """
    return frozenset(BodyLimit.of(route) for route in routes if not route.host)
