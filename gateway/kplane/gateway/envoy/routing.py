"""Which request goes where: the table of routes.

A path is taken as it was sent. The gateway refuses a path that programs could read differently. The exact bytes of the
prefix decide which control plane is meant. Other paths get 404.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.names import (
    AUTHORIZER,
    CERTIFICATE_HEADER,
    GROUP_HEADERS,
    OWN_HEADERS,
    ROUTES,
    UPSTREAM_HEADER,
    by_token,
)
from kplane.gateway.envoy.replies import UNREADABLE, direct_reply
from kplane.gateway.routes import Route

__all__ = ["AMBIGUOUS_PATH", "TENANT_PATH", "routing", "tenant_of"]

AMBIGUOUS_PATH: Final = (
    r"[^?]*(?:\\|%00|%2[fF]|%5[cC]|/(?:\.|%2[eE]){1,2}(?:[/?]|$)).*|/clusters/[^/?]*/control-plane//.*"
)
"""Paths with dot segments, escaped slashes, backslashes or NUL, and those of a tenant that begin with two slashes.

Of Envoy's regular expressions (RE2), which match a whole text. The query is free.
"""

TENANT_PATH: Final = r"/clusters/[-a-z0-9]+/control-plane(?:[/?].*)?"
"""Paths that may be a control plane's, whether there is such a one or not."""

_TENANT_PREFIX: Final = r"^/clusters/[^/?]+/control-plane/?"

_AUTHORIZATION: Final = f"{FILTERS}.http.ext_authz.v3"

_RETRIES: Final = {"retry_on": "connect-failure,refused-stream,reset-before-request", "num_retries": 2}
"""Only of requests that no API server has seen."""

_STREAMING: Final = {"timeout": "0s", "idle_timeout": "0s", "retry_policy": _RETRIES}
"""Only its client and its server end a request: a watch lasts for hours."""


def routing(routes: Iterable[Route]) -> Message:
    """Return the table of routes."""
    return {
        "name": ROUTES,
        # These have done their work when a route is chosen, and are removed after the route has added headers.
        "request_headers_to_remove": [CERTIFICATE_HEADER, UPSTREAM_HEADER, *GROUP_HEADERS, *OWN_HEADERS],
        "virtual_hosts": [{"name": ROUTES, "domains": ["*"], "matcher": _matcher(routes)}],
        "validate_clusters": False,
    }


def _matcher(routes: Iterable[Route]) -> Message:
    """Return which route is taken: the first of these steps that finds one decides."""
    ambiguous = {"match": {"prefix": "/"}, **direct_reply(400, UNREADABLE), "name": "ambiguous-path"}
    verified: Message = {"and_matcher": {"predicate": [_path_is(TENANT_PATH), _has_certificate(), _has_no_token()]}}
    awake = [route for route in routes if route.upstream is not None and route.asleep is None]
    return _steps(
        _list(_path_is(AMBIGUOUS_PATH), _action([{**ambiguous, **_without_authorizer()}])),
        _list(verified, _action([_authorized("by-certificate")])),
        *([_tree(awake)] if awake else []),
        _list(_path_is(TENANT_PATH), _action([_authorized("held")])),
    )


def _steps(*steps: Message) -> Message:
    first, *others = steps
    return {**first, **({"on_no_match": {"matcher": _steps(*others)}} if others else {})}


def _list(predicate: Message, action: Message) -> Message:
    return {"matcher_list": {"matchers": [{"predicate": predicate, "on_match": {"action": action}}]}}


def _tree(routes: Iterable[Route]) -> Message:
    """Find a control plane by the beginning of the path, in a time that does not grow with the table."""
    actions = {route.path: {"action": _action(_tenant(route))} for route in routes}
    return {"matcher_tree": {"input": _header_input(":path"), "prefix_match_map": {"map": actions}}}


def _tenant(route: Route) -> list[Message]:
    """Return the routes of a control plane that is awake, for requests that carry their own credentials, or none.

    They are of its path with and without a slash at the end.
    """
    to = {"cluster": by_token(route.key), "prefix_rewrite": "/", **_STREAMING}
    matches = ({"prefix": f"{route.path}/"}, {"path": route.path})
    shared = {"name": route.cluster_path, "route": to, **_without_authorizer()}
    return [{"match": match, **shared} for match in matches]


def _authorized(name: str) -> Message:
    """Return the route of all requests about which the authorizer decides: it names the control plane, and its user.

    These are those with a client certificate, and all to control planes that are not awake: so Envoy knows nothing of
    them, and whether there are any does not show in its configuration. The authorizer answers when the control plane is
    awake, or says why not. A request keeps the table with which it began, so this route leads there then.

    Which of the two was decided by whom cannot diverge: while the path of a deleted control plane becomes another
    one's, a certificate that was verified for the one never leads to the other.
    """
    return {
        "match": {"safe_regex": {"regex": TENANT_PATH}},
        "name": name,
        "route": {
            "cluster_header": UPSTREAM_HEADER,
            "cluster_not_found_response_code": "SERVICE_UNAVAILABLE",
            "regex_rewrite": {"pattern": {"regex": _TENANT_PREFIX}, "substitution": "/"},
            **_STREAMING,
        },
        "request_headers_to_add": [
            {
                "header": {"key": "x-remote-group", "value": f"%REQ({header})%"},
                "append_action": "APPEND_IF_EXISTS_OR_ADD",
            }
            for header in GROUP_HEADERS
        ],
    }


def _without_authorizer() -> Message:
    return {"typed_per_filter_config": {AUTHORIZER: typed(f"{_AUTHORIZATION}.ExtAuthzPerRoute", disabled=True)}}


def _path_is(regex: str) -> Message:
    return _single(_header_input(":path"), regex)


def _has_certificate() -> Message:
    # The listener sets this header of the certificate of the connection, and removes what clients send of it.
    return _single(_header_input(CERTIFICATE_HEADER), ".+")


def _has_no_token() -> Message:
    return {"not_matcher": _single(_header_input("authorization"), ".*")}


def _single(given: Message, regex: str) -> Message:
    return {"single_predicate": {"input": given, "value_match": {"safe_regex": {"google_re2": {}, "regex": regex}}}}


def _header_input(header: str) -> Message:
    return {
        "name": "header",
        "typed_config": typed("envoy.type.matcher.v3.HttpRequestHeaderMatchInput", header_name=header),
    }


def _action(routes: list[Message]) -> Message:
    return {"name": "routes", "typed_config": typed("envoy.config.route.v3.RouteList", routes=routes)}


def tenant_of(path: str) -> str | None:
    """Return the clusterPath of a path as it was sent, as Envoy reads it; None if it is no control plane's."""
    found = re.match(r"/clusters/([-a-z0-9]+)/control-plane(?=[/?]|\Z)", path)
    return found[1] if found is not None else None
