"""Which request goes where: the table of routes.

A path is taken as it was sent. The gateway refuses a path that programs could read differently. The exact bytes of the
prefix decide which control plane is meant. Other paths get 404.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from kplane.gateway.envoy.bodies import WAITING_IDLE_SECONDS, BodyLimit, idle, limits_of_bodies, short
from kplane.gateway.envoy.credentials import with_credentials
from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.metadata import described, longest_body
from kplane.gateway.envoy.names import (
    AUTHORIZER,
    AUTHORIZER_HEADERS,
    BODY_HEADER,
    CERTIFICATE_HEADER,
    FULL_HEADER,
    GROUP_HEADERS,
    KNOWN_HEADER,
    OWN_HEADERS,
    PROTOCOL_HEADER,
    ROUTES,
    UNKNOWN_PRIORITY,
    UPSTREAM_HEADER,
    by_nobody,
    by_token,
)
from kplane.gateway.envoy.rates import rate_by_address, rates
from kplane.gateway.envoy.readiness import ANSWER_HEADER, RETRIED
from kplane.gateway.envoy.replies import FULL, TOO_LONG, UNREADABLE, direct_reply, refusing, unauthorized
from kplane.gateway.envoy.requests import (
    CHANGES,
    DOUBLE_SLASH,
    ENDS_SOON,
    GROWS,
    STREAMS,
    every,
    header_input,
    header_is,
    negated,
)
from kplane.gateway.routes import Route

__all__ = ["AMBIGUOUS_PATH", "TENANT_PATH", "routing", "tenant_of"]

AMBIGUOUS_PATH: Final = r"[^?]*(?:\\|%00|%2[fF]|%5[cC]|/(?:\.|%2[eE]){1,2}(?:[/?]|$)).*|" + DOUBLE_SLASH
"""Paths with dot segments, escaped slashes, backslashes or NUL, and those of a tenant that begin with two slashes.

Of Envoy's regular expressions (RE2), which match a whole text. The query is free.
"""

TENANT_PATH: Final = r"/clusters/[-a-z0-9]+/control-plane(?:[/?].*)?"
"""Paths that may be a control plane's, whether there is such a one or not."""

_TENANT_PREFIX: Final = r"^/clusters/[^/?]+/control-plane/?"

_AUTHORIZATION: Final = f"{FILTERS}.http.ext_authz.v3"

_RETRIES: Final = {
    "retry_on": RETRIED,
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.02s", "max_interval": "0.02s"},
}
"""While a request waits for its next try, Envoy does not count it as in flight. So both waits together are shorter than
the time between two looks (`presence.py`). Clusters with a waiting room have a policy of their own (`readiness.py`).
"""

_STREAMING: Final = {"timeout": "0s", "idle_timeout": "0s", "retry_policy": _RETRIES}
"""Only its client and its server end a request: a watch lasts for hours."""

_UNVERIFIED: Final = {"max_stream_duration": {"max_stream_duration": "75s"}}
"""For watches with tokens that may be made up. Each takes one of few places (`clusters.py`) until it ends. When the
client watches again, Envoy knows from the first answer that the token is good. API servers end other requests before.
"""

# The listener sets this header of the certificate of the connection, and removes what clients send of it.
_HAS_CERTIFICATE: Final = header_is(CERTIFICATE_HEADER, ".+")
_HAS_NO_AUTHORIZATION: Final = negated(header_is("authorization", ".*"))
_IS_ANONYMOUS: Final = every(
    negated(every(_HAS_CERTIFICATE, _HAS_NO_AUTHORIZATION)),
    # As API servers find a token (`tokens.bearer_token`). They take no other scheme than Bearer.
    negated(header_is("authorization", " *(?i:bearer) [^ ].*")),
    negated(header_is(PROTOCOL_HEADER, ".*base64url[.]bearer[.]authorization[.]k8s[.]io[.].*")),
)
_CLUSTER_INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_READS_CLUSTER_INFO: Final = every(
    header_is(":method", "GET"),
    header_is(":path", rf"/clusters/[-a-z0-9]+/control-plane{_CLUSTER_INFO}(?:[?].*)?"),
)


def routing(routes: Iterable[Route], *, bodies: Iterable[BodyLimit] = ()) -> Message:
    """Return the table of routes. `bodies` are limits that control planes have of which it knows nothing."""
    listed = [route for route in routes if not route.host]
    matcher = _matcher(listed, bodies=limits_of_bodies(listed) | frozenset(bodies))
    host = {"name": ROUTES, "domains": ["*"], "matcher": matcher}
    return {
        "name": ROUTES,
        # These have done their work when a route is chosen, and are removed after the route has added headers.
        "request_headers_to_remove": [CERTIFICATE_HEADER, *AUTHORIZER_HEADERS, *GROUP_HEADERS, *OWN_HEADERS],
        "response_headers_to_remove": [ANSWER_HEADER],
        "virtual_hosts": [{**host, "typed_per_filter_config": rates(listed)}],
        "validate_clusters": False,
    }


def _matcher(routes: Iterable[Route], *, bodies: Iterable[BodyLimit]) -> Message:
    """Return which route is taken: the first of these steps that finds one decides."""
    ambiguous = {"match": {"prefix": "/"}, **direct_reply(400, UNREADABLE), "name": "ambiguous-path"}
    with_certificate = every(header_is(":path", TENANT_PATH), _HAS_CERTIFICATE, _HAS_NO_AUTHORIZATION)
    nobody = {"match": {"prefix": "/"}, **unauthorized(), "name": "anonymous", **_without_authorizer()}
    held = _authorized_changes("held", bodies=bodies)
    awake = [route for route in routes if route.upstream is not None and route.asleep is None]
    public = {route.path: _action([_public(route)]) for route in awake if _is_public(route)}
    full = {route.path: _action(_refused_as_full(route)) for route in awake if route.full}
    changing = {route.path: _action(_changing(route)) if route.held is None else held for route in awake}
    reading = {route.path: _action(_reading(route)) for route in awake}
    with_body = {route.path: _action(_reading(route, limited=True)) for route in awake}
    return _steps(
        _list(header_is(":path", AMBIGUOUS_PATH), _action([{**ambiguous, **_without_authorizer()}])),
        *([_list(every(_IS_ANONYMOUS, _READS_CLUSTER_INFO), _tree(public))] if public else []),
        # No API server answers anything else without a credential. So the answer does not tell which names exist.
        _list(every(_IS_ANONYMOUS, header_is(":path", TENANT_PATH)), _action([nobody])),
        # The authorizer knows of control planes that this table does not know.
        _list(every(header_is(FULL_HEADER, ".+"), GROWS), _action([_refused_by_authorizer()])),
        _list(with_certificate, _authorized("by-certificate", bodies=bodies)),
        *([_list(GROWS, _tree(full))] if full else []),
        *([_list(CHANGES, _tree(changing))] if awake else []),
        *([_list(ENDS_SOON, _tree(with_body)), _tree(reading)] if awake else []),
        _list(header_is(":path", TENANT_PATH), _authorized("held", bodies=bodies)),
    )


def _steps(*steps: Message) -> Message:
    first, *others = steps
    return {**first, **({"on_no_match": {"matcher": _steps(*others)}} if others else {})}


def _list(predicate: Message, found: Message) -> Message:
    """Return a step for requests of which something is true; `found` is an action, or a matcher of its own."""
    return {"matcher_list": {"matchers": [{"predicate": predicate, "on_match": _on_match(found)}]}}


def _on_match(found: Message) -> Message:
    return {"action": found} if "typed_config" in found else {"matcher": found}


def _tree(by_path: Mapping[str, Message]) -> Message:
    """Find a control plane by the beginning of the path, in a time that does not grow with the table."""
    actions = {path: _on_match(found) for path, found in by_path.items()}
    return {"matcher_tree": {"input": header_input(":path"), "prefix_match_map": {"map": actions}}}


def _reading(route: Route, *, limited: bool = False) -> list[Message]:
    """Return the routes of a control plane that is awake, for requests that carry their own credentials.

    They are of its path with and without a slash at the end. `limited`: a request may pause as changes may.
    """
    matches = ({"prefix": f"{route.path}/"}, {"path": route.path})
    limit = idle(route.limits.request_idle_seconds) if limited else {}
    found = [_limited(_to(route, match, change=False), limit) for match in matches]
    return _by_knowledge(found, of=route, longest=_UNVERIFIED)


def _changing(route: Route) -> list[Message]:
    """Return its routes for requests that change something."""
    match, limit = {"prefix": f"{route.path}/"}, BodyLimit.of(route)
    found = _limited(_to(route, match, change=True), idle(limit.idle_seconds))
    if limit.longest is None:
        return _by_knowledge([found], of=route)
    long = _refusal(route, match, TOO_LONG)
    return _by_knowledge([*(_limited(found, part) for part in short(limit.longest)), long], of=route)


def _by_knowledge(routes: list[Message], *, of: Route, longest: Message | None = None) -> list[Message]:
    """Return these routes for requests with good tokens, then for requests whose token may be made up.

    `longest` limits the time of the latter, except for streams to pods and nodes.

    Envoy takes one of the latter first. The filter (`credentials.py`) then says of a good token that it is good.
    """
    known = {"name": KNOWN_HEADER, "present_match": True}
    verifying = {"typed_per_filter_config": with_credentials(of.key)}
    unknown = {"metadata": described(of, known=False), **verifying}
    apart = {"route": {"priority": UNKNOWN_PRIORITY}}
    streams = {"name": ":path", "string_match": {"safe_regex": {"regex": STREAMS}}}
    made_up = [_limited(route, {**unknown, **(apart if "route" in route else {})}) for route in routes]
    if longest is not None:
        lasting = [_limited(route, {"match": {"headers": [streams]}}) for route in made_up]
        made_up = [*lasting, *(_limited(route, {"route": longest}) for route in made_up)]
    return [
        *(
            _limited(route, {"match": {"headers": [known, *route["match"].get("headers", ())]}, **verifying})
            for route in routes
        ),
        *made_up,
    ]


def _to(route: Route, match: Message, *, change: bool) -> Message:
    action = {"cluster": by_token(route.key, change=change), "prefix_rewrite": "/", **_STREAMING}
    return {**_of(route), "match": match, "route": action}


def _is_public(route: Route) -> bool:
    return route.upstream is not None and route.upstream.trust.cluster_info


def _public(route: Route) -> Message:
    """Return the route for nodes that join: they read `cluster-info` before they have a credential."""
    action = {"cluster": by_nobody(route.key), "prefix_rewrite": _CLUSTER_INFO, **_STREAMING, "timeout": "10s"}
    filters = {**_without_authorizer()["typed_per_filter_config"], **rate_by_address()}
    match = {"prefix": f"{route.path}{_CLUSTER_INFO}"}
    return {**_of(route), "match": match, "route": action, "typed_per_filter_config": filters}


def _refused_as_full(route: Route) -> list[Message]:
    return _by_knowledge([_refusal(route, {"prefix": f"{route.path}/"}, FULL)], of=route)


def _refusal(route: Route, match: Message, code: int) -> Message:
    return {**_of(route), "match": match, **refusing(code)}


def _of(route: Route) -> Message:
    return {"name": route.cluster_path, "metadata": described(route, known=True), **_without_authorizer()}


def _refused_by_authorizer() -> Message:
    return {"match": {"prefix": "/"}, "name": "full", **refusing(FULL)}


def _authorized(name: str, *, bodies: Iterable[BodyLimit]) -> Message:
    """Return the step of all requests about which the authorizer decides: it names the control plane, and its user.

    These are those with a client certificate, and all to control planes that are not awake: so Envoy knows nothing of
    them, and whether there are any does not show in its configuration. The authorizer answers when the control plane is
    awake, or says why not. A request keeps the table with which it began, so this route leads there then.

    Which of the two was decided by whom cannot diverge: while the path of a deleted control plane becomes another
    one's, a certificate that was verified for the one never leads to the other.
    """
    changing = _on_match(_authorized_changes(name, bodies=bodies))
    limited = {"action": _action([_limited(_by_authorizer(name), idle(WAITING_IDLE_SECONDS))])}
    matchers = [{"predicate": CHANGES, "on_match": changing}, {"predicate": ENDS_SOON, "on_match": limited}]
    return {
        "matcher_list": {"matchers": matchers},
        "on_no_match": {"action": _action([_by_authorizer(name)])},
    }


def _authorized_changes(name: str, *, bodies: Iterable[BodyLimit]) -> Message:
    """Return the routes of requests that change something. The authorizer also names the limits of their bodies.

    A request that waits for the authorizer has no limit of its control plane yet.
    """
    waiting = _action([_limited(_by_authorizer(name), idle(WAITING_IDLE_SECONDS))])
    limited = {str(limit): {"action": _action(_authorized_change(name, limit))} for limit in sorted(bodies, key=str)}
    if not limited:
        return waiting
    by_limit = {"input": header_input(BODY_HEADER), "exact_match_map": {"map": limited}}
    return {"matcher_tree": by_limit, "on_no_match": {"action": waiting}}


def _authorized_change(name: str, limit: BodyLimit) -> list[Message]:
    found = _limited(_by_authorizer(name), idle(limit.idle_seconds))
    if limit.longest is None:
        return [found]
    metadata = {"metadata": longest_body(limit.longest)}
    return [*(_limited(found, {**part, **metadata}) for part in short(limit.longest)), {**_too_long(name), **metadata}]


def _too_long(name: str) -> Message:
    return {"match": {"prefix": "/"}, "name": name, **refusing(TOO_LONG)}


def _by_authorizer(name: str) -> Message:
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


def _limited(route: Message, part: Message) -> Message:
    """Return a route for those requests alone whose bodies may pass."""
    merged = {key: {**route.get(key, {}), **values} for key, values in part.items()}
    return {**route, **merged}


def _without_authorizer() -> Message:
    return {"typed_per_filter_config": {AUTHORIZER: typed(f"{_AUTHORIZATION}.ExtAuthzPerRoute", disabled=True)}}


def _action(routes: list[Message]) -> Message:
    return {"name": "routes", "typed_config": typed("envoy.config.route.v3.RouteList", routes=routes)}


def tenant_of(path: str) -> str | None:
    """Return the clusterPath of a path as it was sent, as Envoy reads it; None if it is no control plane's."""
    found = re.match(r"/clusters/([-a-z0-9]+)/control-plane(?=[/?]|\Z)", path)
    return found[1] if found is not None else None
