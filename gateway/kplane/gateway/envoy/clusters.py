"""API servers as Envoy's clusters."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.host_names import host_cluster
from kplane.gateway.envoy.messages import HTTP_OPTIONS, TLS, Message, certificate, typed
from kplane.gateway.envoy.names import UNKNOWN_PRIORITY, by_certificate, by_nobody, by_token
from kplane.gateway.envoy.readiness import with_readiness
from kplane.gateway.routes import Route, Upstream

__all__ = ["changes_in_flight", "clusters"]

_CONNECT_TIMEOUT: Final = "3s"
"""With the handshake of TLS. An API server that starts may take connections for seconds before it answers. A request
that waits there must come to the waiting room before the API server answers it with 403.
"""
_IDLE_TIMEOUT: Final = "60s"
"""kube-apiserver closes after 90 s (net/http's IdleTimeout there); a request must not meet that."""
_MANY: Final = 16384
"""Connections, and requests in flight, of one control plane: watches count. Envoy's own limit is 1,024."""
_MAX_ANONYMOUS: Final = 8
"""Requests without a credential in flight. They read one ConfigMap, and are no part of the limit of the class."""
_MAX_UNKNOWN: Final = 32
"""Requests in flight whose token may be made up. An API server refuses those that are made up at once."""
_KEEPALIVE: Final = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
_STREAM_WINDOW: Final = 256 << 10
_CONNECTION_BUFFER: Final = 256 << 10
_CONNECTION_WINDOW: Final = 4 << 20


def clusters(routes: Iterable[Route], *, holder: PurePosixPath, waiting_room: PurePosixPath) -> list[Message]:
    """Return the clusters of all routes. `holder` is the socket for connections to control planes that sleep, and
    `waiting_room` that for requests to API servers that are not ready.

    Address, CA and certificate are in the cluster itself. In files of their own, Envoy would watch each by an inotify
    instance, of which a user has 128, and it aborts if there are no more. A cluster that changes is replaced: streams
    that are open continue on the connections that they have.
    """
    found = []
    for route in routes:
        if route.upstream is None:
            continue
        if route.host:
            found.append(host_cluster(route, route.upstream, holder=holder))
            continue
        found.extend(_by_path(route, route.upstream, waiting_room=waiting_room))
    return found


def _by_path(route: Route, upstream: Upstream, *, waiting_room: PurePosixPath) -> Iterator[Message]:
    most, front_proxy = route.limits.requests_in_flight or _MANY, upstream.front_proxy
    if upstream.trust.cluster_info:
        yield _cluster(by_nobody(route.key), upstream, most=_MAX_ANONYMOUS)
    for change in (False, True):
        by_users = _cluster(by_token(route.key, change=change), upstream, most=most)
        if front_proxy is None:
            yield by_users
            continue
        own = {"tls_certificates": [certificate(front_proxy.certificate)]}
        verified = _cluster(by_certificate(route.key, change=change), upstream, most=most, own=own)
        if upstream.is_address:
            checked: Message = {"checked_by": verified["transport_socket"], "room": waiting_room}
            yield with_readiness(by_users, **checked, needs_certificate=False)
            yield with_readiness(verified, **checked, needs_certificate=True)
        else:
            # A name is that of a Service, which leads to ready pods alone.
            yield from (by_users, verified)


def changes_in_flight(route: Route, numbers: Mapping[str, int]) -> int:
    """Return how many requests that change something Envoy has sent, or is about to send, and has no answer to yet.

    Clusters of one name count together, so that those of a cluster that was replaced are among them.
    """
    return sum(
        numbers.get(f"cluster.{cluster}.{stat}", 0)
        for cluster in (by_token(route.key, change=True), by_certificate(route.key, change=True))
        for stat in ("upstream_rq_active", "upstream_rq_pending_active")
    )


def _cluster(name: str, upstream: Upstream, *, most: int, own: Message | None = None) -> Message:
    """Return a cluster with at most so many requests in flight.

    Requests whose token may be made up have priority HIGH, by which Envoy counts them apart. They take no `most`.
    """
    many = dict.fromkeys(("max_connections", "max_pending_requests", "max_retries"), _MANY)
    return {
        "name": name,
        "type": "STATIC" if upstream.is_address else "STRICT_DNS",
        "connect_timeout": _CONNECT_TIMEOUT,
        "per_connection_buffer_limit_bytes": _CONNECTION_BUFFER,
        "load_assignment": _assignment(name, upstream),
        "circuit_breakers": {
            "thresholds": [
                {**many, "max_requests": most},
                {**many, "max_requests": _MAX_UNKNOWN, "priority": UNKNOWN_PRIORITY},
            ]
        },
        "upstream_connection_options": {"tcp_keepalive": _KEEPALIVE},
        "typed_extension_protocol_options": {HTTP_OPTIONS: typed(HTTP_OPTIONS, **_protocols())},
        "transport_socket": _tls(upstream, own=own or {}),
    }


def _assignment(name: str, upstream: Upstream) -> Message:
    address = {"socket_address": {"address": upstream.host, "port_value": upstream.port}}
    return {"cluster_name": name, "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}]}


def _protocols() -> Message:
    # As the client speaks: an upgrade needs HTTP/1.1 all the way, and everything else is better off with HTTP/2.
    http2 = {
        "initial_stream_window_size": _STREAM_WINDOW,
        "initial_connection_window_size": _CONNECTION_WINDOW,
        "connection_keepalive": {"interval": "30s", "timeout": "20s"},
    }
    return {
        "common_http_protocol_options": {"idle_timeout": _IDLE_TIMEOUT},
        "use_downstream_protocol_config": {"http_protocol_options": {}, "http2_protocol_options": http2},
    }


def _tls(upstream: Upstream, *, own: Message) -> Message:
    common = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "validation_context": {
            "trusted_ca": {"inline_string": upstream.ca.decode("ascii")},
            "match_typed_subject_alt_names": [_subject(upstream)],
        },
        **own,
    }
    sni = {} if upstream.is_address else {"sni": upstream.host}
    context = typed(f"{TLS}.UpstreamTlsContext", common_tls_context=common, **sni)
    return {"name": "tls", "typed_config": context}


def _subject(upstream: Upstream) -> Message:
    if upstream.is_address:
        return {"san_type": "IP_ADDRESS", "matcher": {"exact": str(ipaddress.ip_address(upstream.host))}}
    return {"san_type": "DNS", "matcher": {"exact": upstream.host}}
