"""How long the body of a request that changes something may be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.routes import Route

__all__ = ["body_limit", "limits_of_bodies", "short"]

_LUA: Final = f"{FILTERS}.http.lua.v3"
_NAME: Final = "body-limit"
DELETION_SECONDS: Final = 150
"""A request that waits for its body is in no count of those in flight. The API server itself gives up after 60 s."""
_SCRIPT: Final = """
function envoy_on_request(request)
  local body = request:body()
  if body and body:length() > request:filterContext():get("longest") then
    request:respond({[":status"] = "413"}, "")
  end
end
"""
"""Envoy's own filter for this (buffer) lets a body pass that comes as one piece with the end of the request."""


def body_limit() -> Message:
    """Return the filter. It waits for the bodies of those requests whose route says so, and for no others."""
    return {"name": _NAME, "typed_config": typed(f"{_LUA}.Lua", source_codes={_NAME: {"inline_string": _SCRIPT}})}


def short(longest: int) -> tuple[Message, Message]:
    """Return the parts of two routes. One of them takes a request whose body may pass.

    A deletion needs no body, and then no `Content-Length`. Whether it has one shows when the body comes.
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


def limits_of_bodies(routes: Iterable[Route]) -> frozenset[int]:
    """Return the limits that there are, for the table of routes: a request that waits keeps the table of its begin."""
    return frozenset(longest for route in routes if (longest := route.limits.request_bytes) is not None)
