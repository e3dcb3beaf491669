"""Route configuration of Envoy: the cluster or the response for each request.

Envoy keeps paths as clients send them. The gateway refuses a path that programs could interpret differently. The exact
bytes of the prefix select the control plane. Other paths get 404.
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
    UNKNOWN_HEADER,
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
"""Paths with dot segments, escaped slashes, backslashes or NUL, and paths of control planes with two slashes in their
prefix. The pattern is a regular expression of Envoy (RE2), which matches the whole text. It does not restrict the
query.
"""

TENANT_PATH: Final = r"/clusters/[-a-z0-9]+/control-plane(?:[/?].*)?"
"""Paths that may belong to a control plane, whether the control plane exists or not."""

_TENANT_PREFIX: Final = r"^/clusters/[^/?]+/control-plane/?"

_AUTHORIZATION: Final = f"{FILTERS}.http.ext_authz.v3"

_RETRIES: Final = {
    "retry_on": RETRIED,
    "num_retries": 2,
    "retry_back_off": {"base_interval": "0.02s", "max_interval": "0.02s"},
}
"""Between two tries, Envoy does not count a request as in flight. So both delays together are shorter than the time
between two looks of `presence.py`. Clusters with a waiting room have their own policy (`readiness.py`).
"""

_STREAMING: Final = {"timeout": "0s", "idle_timeout": "0s", "retry_policy": _RETRIES}
"""No timeouts, since a watch lasts for hours. Client and server end a request."""

_UNVERIFIED: Final = {"max_stream_duration": {"max_stream_duration": "75s"}}
"""Time limit for watches with unverified tokens. Each watch occupies one of few places (`clusters.py`). When the
client watches again, Envoy knows from the first response that the token is valid. API servers end other requests
earlier.
"""

# The listener sets this header from the certificate of the connection, and removes the header of the client.
_HAS_CERTIFICATE: Final = header_is(CERTIFICATE_HEADER, ".+")
_HAS_NO_AUTHORIZATION: Final = negated(header_is("authorization", ".*"))
_IS_ANONYMOUS: Final = every(
    negated(every(_HAS_CERTIFICATE, _HAS_NO_AUTHORIZATION)),
    # API servers find a token by the same rules (`tokens.bearer_token`), and accept no scheme other than Bearer.
    negated(header_is("authorization", " *(?i:bearer) [^ ].*")),
    negated(header_is(PROTOCOL_HEADER, ".*base64url[.]bearer[.]authorization[.]k8s[.]io[.].*")),
)
_IS_AUTHORIZED: Final = header_is(BODY_HEADER, ".+")
"""Predicate for requests that the authorizer has let pass. Envoy then selects a route once more."""
_IS_UNVERIFIED: Final = header_is(UNKNOWN_HEADER, ".+")
"""Predicate for requests that the authorizer has let pass without a verified token."""
_IS_FULL: Final = header_is(FULL_HEADER, ".+")
_CLUSTER_INFO: Final = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
_READS_CLUSTER_INFO: Final = every(
    header_is(":method", "GET"),
    header_is(":path", rf"/clusters/[-a-z0-9]+/control-plane{_CLUSTER_INFO}(?:[?].*)?"),
)


def routing(routes: Iterable[Route], *, bodies: Iterable[BodyLimit] = ()) -> Message:
    """Return the route configuration. `bodies` are the body limits of control planes without a route here."""
    listed = [route for route in routes if not route.host]
    matcher = _matcher(listed, bodies=limits_of_bodies(listed) | frozenset(bodies))
    host = {"name": ROUTES, "domains": ["*"], "matcher": matcher}
    return {
        "name": ROUTES,
        # These headers only affect the choice of a route. Envoy removes them after the route has added its own headers.
        "request_headers_to_remove": [CERTIFICATE_HEADER, *AUTHORIZER_HEADERS, *GROUP_HEADERS, *OWN_HEADERS],
        "response_headers_to_remove": [ANSWER_HEADER],
        "virtual_hosts": [{**host, "typed_per_filter_config": rates(listed)}],
        "validate_clusters": False,
    }


def _matcher(routes: Iterable[Route], *, bodies: Iterable[BodyLimit]) -> Message:
    """Return the matcher of routes. Of its steps, the first step with a match decides."""
    ambiguous = {"match": {"prefix": "/"}, **direct_reply(400, UNREADABLE), "name": "ambiguous-path"}
    with_certificate = every(header_is(":path", TENANT_PATH), _HAS_CERTIFICATE, _HAS_NO_AUTHORIZATION)
    anonymous = {**_unauthorized({"prefix": "/"}), **_without_authorizer()}
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
        # API servers refuse all other requests without a credential. So the response does not reveal existing names.
        _list(every(_IS_ANONYMOUS, header_is(":path", TENANT_PATH)), _action([anonymous])),
        # The authorizer also knows the quotas of control planes without a route here. A client without a verified
        # credential must not learn from a refusal which names exist.
        _list(every(_IS_FULL, _IS_UNVERIFIED, GROWS), _action([_unauthorized({"prefix": "/"})])),
        _list(every(_IS_FULL, GROWS), _action([_refused_by_authorizer()])),
        _list(with_certificate, _authorized("by-certificate", bodies=bodies)),
        *([_list(every(GROWS, negated(_IS_AUTHORIZED)), _tree(full))] if full else []),
        *([_list(CHANGES, _tree(changing))] if awake else []),
        *([_list(ENDS_SOON, _tree(with_body)), _tree(reading)] if awake else []),
        _list(header_is(":path", TENANT_PATH), _authorized("held", bodies=bodies)),
    )


def _steps(*steps: Message) -> Message:
    first, *others = steps
    return {**first, **({"on_no_match": {"matcher": _steps(*others)}} if others else {})}


def _list(predicate: Message, found: Message) -> Message:
    """Return a step for requests that match a predicate. `found` is an action or another matcher."""
    return {"matcher_list": {"matchers": [{"predicate": predicate, "on_match": _on_match(found)}]}}


def _on_match(found: Message) -> Message:
    return {"action": found} if "typed_config" in found else {"matcher": found}


def _tree(by_path: Mapping[str, Message]) -> Message:
    """Return a step that finds a control plane by the prefix of the path.

    Its time does not grow with the number of routes.
    """
    actions = {path: _on_match(step) for path, step in by_path.items()}
    return {"matcher_tree": {"input": header_input(":path"), "prefix_match_map": {"map": actions}}}


def _reading(route: Route, *, limited: bool = False) -> list[Message]:
    """Return the routes of an awake control plane for requests that carry their own credentials.

    The routes match the path with and without a slash at the end. With `limited`, a request may pause only as long as a
    mutating request.
    """
    matches = ({"prefix": f"{route.path}/"}, {"path": route.path})
    limit = idle(route.limits.request_idle_seconds) if limited else {}
    routes = [_limited(_to(route, match, change=False), limit) for match in matches]
    return _by_knowledge(routes, of=route, longest=_UNVERIFIED)


def _changing(route: Route) -> list[Message]:
    """Return the routes of a control plane for mutating requests."""
    match, limit = {"prefix": f"{route.path}/"}, BodyLimit.of(route)
    accepted = _limited(_to(route, match, change=True), idle(limit.idle_seconds))
    if limit.longest is None:
        return _by_knowledge([accepted], of=route)
    limited = [_limited(accepted, part) for part in short(limit.longest)]
    long = {"name": route.cluster_path, "metadata": longest_body(limit.longest), **refusing(TOO_LONG)}
    return [
        *_known([*limited, _refusal(route, match, TOO_LONG)], of=route),
        *_unverified(limited, of=route),
        _unauthorized({**match, **_with_header(UNKNOWN_HEADER)}),
        {"match": {**match, **_with_header(BODY_HEADER)}, **long},
        _verified_first(route, match),
    ]


def _by_knowledge(routes: list[Message], *, of: Route, longest: Message | None = None) -> list[Message]:
    """Return these routes for requests with verified tokens, then for requests with unverified tokens.

    `longest` limits the duration of requests with unverified tokens, except for streams to pods and nodes. Envoy
    selects a route for unverified tokens first. The filter (`credentials.py`) then marks a verified token, and Envoy
    selects again.
    """
    return [*_known(routes, of=of), *_unverified(routes, of=of, longest=longest)]


def _known(routes: list[Message], *, of: Route) -> list[Message]:
    marker = {"name": KNOWN_HEADER, "present_match": True}
    verifying = {"typed_per_filter_config": with_credentials(of.key)}
    return [
        _limited(route, {"match": {"headers": [marker, *route["match"].get("headers", ())]}, **verifying})
        for route in routes
    ]


def _unverified(routes: list[Message], *, of: Route, longest: Message | None = None) -> list[Message]:
    unknown = {"metadata": described(of, known=False), "typed_per_filter_config": with_credentials(of.key)}
    priority = {"route": {"priority": UNKNOWN_PRIORITY}}
    streams = {"name": ":path", "string_match": {"safe_regex": {"regex": STREAMS}}}
    unverified = [_limited(route, {**unknown, **priority}) for route in routes]
    if longest is None:
        return unverified
    lasting = [_limited(route, {"match": {"headers": [streams]}}) for route in unverified]
    return [*lasting, *(_limited(route, {"route": longest}) for route in unverified)]


def _to(route: Route, match: Message, *, change: bool) -> Message:
    action = {"cluster": by_token(route.key, change=change), "prefix_rewrite": "/", **_STREAMING}
    return {**_of(route), "match": match, "route": action}


def _is_public(route: Route) -> bool:
    return route.upstream is not None and route.upstream.trust.cluster_info


def _public(route: Route) -> Message:
    """Return the route for joining nodes, which read `cluster-info` before they have a credential."""
    action = {"cluster": by_nobody(route.key), "prefix_rewrite": _CLUSTER_INFO, **_STREAMING, "timeout": "10s"}
    filters = {**_without_authorizer()["typed_per_filter_config"], **rate_by_address()}
    match = {"prefix": f"{route.path}{_CLUSTER_INFO}"}
    return {**_of(route), "match": match, "route": action, "typed_per_filter_config": filters}


def _refused_as_full(route: Route) -> list[Message]:
    match = {"prefix": f"{route.path}/"}
    return [*_known([_refusal(route, match, FULL)], of=route), _verified_first(route, match)]


def _verified_first(route: Route, match: Message) -> Message:
    """Return the route for a request with an unverified token that the gateway would refuse.

    The filter (`credentials.py`) verifies no token of a mutating request, so the authorizer does. Envoy then selects
    again, by the headers of the authorizer's response.
    """
    asking = {"match": match, "typed_per_filter_config": with_credentials(route.key)}
    return {**_limited(_by_authorizer(route.cluster_path), idle(WAITING_IDLE_SECONDS)), **asking}


def _unauthorized(match: Message) -> Message:
    return {"match": match, "name": "anonymous", **unauthorized()}


def _with_header(name: str) -> Message:
    return {"headers": [{"name": name, "present_match": True}]}


def _refusal(route: Route, match: Message, code: int) -> Message:
    return {**_of(route), "match": match, **refusing(code)}


def _of(route: Route) -> Message:
    return {"name": route.cluster_path, "metadata": described(route, known=True), **_without_authorizer()}


def _refused_by_authorizer() -> Message:
    return {"match": {"prefix": "/"}, "name": "full", **refusing(FULL)}


def _authorized(name: str, *, bodies: Iterable[BodyLimit]) -> Message:
    """Return the step for all requests that the authorizer decides. Its response names the cluster and the user.

    The step covers requests with a client certificate, and requests to control planes that are not awake. So Envoy's
    configuration does not contain sleeping control planes, and cannot reveal them. The authorizer responds once the
    control plane is awake, or with a refusal. Since a request keeps the route configuration with which it began, this
    route then leads to the cluster.

    User and cluster always belong together. After a control plane is deleted, its path may pass to a new control plane.
    A certificate that was verified for the deleted control plane never leads to the new control plane.
    """
    changing = _on_match(_authorized_changes(name, bodies=bodies))
    limited = {"action": _action([_limited(_by_authorizer(name), idle(WAITING_IDLE_SECONDS))])}
    matchers = [{"predicate": CHANGES, "on_match": changing}, {"predicate": ENDS_SOON, "on_match": limited}]
    return {
        "matcher_list": {"matchers": matchers},
        "on_no_match": {"action": _action([_by_authorizer(name)])},
    }


def _authorized_changes(name: str, *, bodies: Iterable[BodyLimit]) -> Message:
    """Return the routes of mutating requests that the authorizer decides. Its response also names their body limits.

    A request that still waits for the authorizer has no limit of its control plane yet.
    """
    waiting = _action([_limited(_by_authorizer(name), idle(WAITING_IDLE_SECONDS))])
    limited = {str(limit): {"action": _action(_authorized_change(name, limit))} for limit in sorted(bodies, key=str)}
    if not limited:
        return waiting
    by_limit = {"input": header_input(BODY_HEADER), "exact_match_map": {"map": limited}}
    return {"matcher_tree": by_limit, "on_no_match": {"action": waiting}}


def _authorized_change(name: str, limit: BodyLimit) -> list[Message]:
    accepted = _limited(_by_authorizer(name), idle(limit.idle_seconds))
    if limit.longest is None:
        return [accepted]
    metadata = {"metadata": longest_body(limit.longest)}
    return [
        *(_limited(accepted, {**part, **metadata}) for part in short(limit.longest)),
        _unauthorized({"prefix": "/", **_with_header(UNKNOWN_HEADER)}),
        {"match": {"prefix": "/"}, "name": name, **refusing(TOO_LONG), **metadata},
    ]


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
    """Return a route with additional fields. Fields of both are merged, and values of `part` win."""
    merged = {key: {**route.get(key, {}), **values} for key, values in part.items()}
    return {**route, **merged}


def _without_authorizer() -> Message:
    return {"typed_per_filter_config": {AUTHORIZER: typed(f"{_AUTHORIZATION}.ExtAuthzPerRoute", disabled=True)}}


def _action(routes: list[Message]) -> Message:
    return {"name": "routes", "typed_config": typed("envoy.config.route.v3.RouteList", routes=routes)}


def tenant_of(path: str) -> str | None:
    """Return the clusterPath of an unmodified request path, as Envoy interprets it; None for a path of no control
    plane.
    """
    match = re.match(r"/clusters/([-a-z0-9]+)/control-plane(?=[/?]|\Z)", path)
    return match[1] if match is not None else None
