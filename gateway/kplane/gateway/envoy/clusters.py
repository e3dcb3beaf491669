"""Clusters of Envoy for API servers."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.host_names import host_cluster, proxy_header
from kplane.gateway.envoy.messages import HTTP_OPTIONS, TLS, Message, certificate, typed, unix_socket
from kplane.gateway.envoy.names import UNKNOWN_PRIORITY, by_certificate, by_nobody, by_token
from kplane.gateway.envoy.readiness import with_host_readiness, with_readiness
from kplane.gateway.routes import Route, Upstream

__all__ = ["changes_in_flight", "clusters"]

_CONNECT_TIMEOUT: Final = "3s"
"""Timeout of a connection, including the TLS handshake.

An API server that starts may accept connections for seconds before it responds. A request that waits for such a
connection must reach the waiting room before the API server responds with 403.
"""
_IDLE_TIMEOUT: Final = "60s"
"""Timeout of idle connections. kube-apiserver closes them after 90 s (IdleTimeout of its net/http server), so Envoy
must close them before.
"""
_MANY: Final = 16384
"""Maximum number of connections, and of requests in flight with watches, of a control plane. Envoy's
default is 1,024.
"""
_MAX_ANONYMOUS: Final = 8
"""Maximum number of requests without a credential in flight. They read a single ConfigMap, and do not count for the
limit of the class.
"""
_MAX_UNKNOWN: Final = 32
"""Maximum number of requests with an unverified token in flight. An API server refuses invalid tokens at once."""
_KEEPALIVE: Final = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}
_STREAM_WINDOW: Final = 256 << 10
_CONNECTION_BUFFER: Final = 256 << 10
_CONNECTION_WINDOW: Final = 4 << 20


def clusters(routes: Iterable[Route], *, holder: PurePosixPath, waiting_room: PurePosixPath) -> list[Message]:
    """Return the clusters of all routes.

    `holder` is the socket for connections to control planes that sleep, and for connections to API servers that are not
    ready. `waiting_room` is the socket for requests to API servers that are not ready.

    Each cluster contains address, CA and certificate. With separate files, Envoy would need an inotify instance for
    each file, and would abort without them: a user has 128 by default. Envoy replaces a cluster that changes, and open
    streams continue on their connections.
    """
    messages = []
    for route in routes:
        if route.upstream is None:
            continue
        if route.host:
            messages.append(_by_host(route, route.upstream, holder=holder))
            continue
        messages.extend(_by_path(route, route.upstream, waiting_room=waiting_room))
    return messages


def _by_host(route: Route, upstream: Upstream, *, holder: PurePosixPath) -> Message:
    cluster = host_cluster(route, upstream, holder=holder)
    if route.asleep is not None or not upstream.is_address:
        return cluster
    return with_host_readiness(cluster, held=unix_socket(str(holder)), held_by=proxy_header(route.key))


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
            # A host name belongs to a Service, which selects only ready pods.
            yield from (by_users, verified)


def changes_in_flight(route: Route, numbers: Mapping[str, int]) -> int:
    """Return the number of mutating requests that Envoy has sent, or is about to send, without a response yet.

    Clusters with the same name share statistics, so requests of a replaced cluster are included.
    """
    return sum(
        numbers.get(f"cluster.{cluster}.{stat}", 0)
        for cluster in (by_token(route.key, change=True), by_certificate(route.key, change=True))
        for stat in ("upstream_rq_active", "upstream_rq_pending_active")
    )


def _cluster(name: str, upstream: Upstream, *, most: int, own: Message | None = None) -> Message:
    """Return a cluster with at most `most` requests in flight.

    Requests with an unverified token have priority HIGH, so that Envoy counts them separately from this limit.
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
    # Use the protocol of the client: upgrades need HTTP/1.1 end to end, and HTTP/2 is better for all other requests.
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
