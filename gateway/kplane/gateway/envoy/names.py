"""Names in Envoy's configuration: clusters, statistics, and headers between the authorizer and Envoy."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ANONYMOUS",
    "AUTHORIZER",
    "AUTHORIZER_HEADERS",
    "BACKLOG",
    "BODY_HEADER",
    "CERTIFICATE_HEADER",
    "CHUNKED_HEADER",
    "CLIENT_HEADER",
    "CONNECTIONS",
    "CONNECTION_BUFFER",
    "CREDENTIAL_HEADER",
    "FULL_HEADER",
    "GROUP_HEADERS",
    "INTERNAL_PREFIX",
    "KEY_TYPE",
    "KNOWN_HEADER",
    "LIMITED_BY_HEADER",
    "LISTENER",
    "OWN_HEADERS",
    "PROTOCOL_HEADER",
    "RATE_LIMIT",
    "ROUTES",
    "STRIPPED_PREFIXES",
    "TENANT_HEADER",
    "UNKNOWN_HEADER",
    "UNKNOWN_PRIORITY",
    "UPSTREAM_HEADER",
    "USER_HEADER",
    "VERIFY_HEADER",
    "by_certificate",
    "by_host",
    "by_nobody",
    "by_token",
    "connections_of",
]

AUTHORIZER: Final = "authorizer"
LISTENER: Final = "gateway"
RATE_LIMIT: Final = "rate-limit"
ROUTES: Final = "control-planes"

CONNECTION_BUFFER: Final = 256 << 10
"""Bytes of bodies that Envoy buffers for a connection, also while its request waits. `waker.py` limits waiting
requests.
"""

BACKLOG: Final = 4096
"""Maximum number of connections from Envoy to each service of the controller, and backlog of the service's
Unix socket.
"""

CERTIFICATE_HEADER: Final = "x-forwarded-client-cert"
"""Header with the certificate chain of the connection, for the authorizer. Only the listener sets it."""

CLIENT_HEADER: Final = "x-forwarded-for"
"""Header with the address of the client. Only the listener sets it."""

PROTOCOL_HEADER: Final = "sec-websocket-protocol"
"""Header in which browsers send tokens."""

INTERNAL_PREFIX: Final = "x-kplane-"
"""Prefix of headers between the authorizer and Envoy. API servers do not receive them."""

UPSTREAM_HEADER: Final = f"{INTERNAL_PREFIX}upstream"
"""Header with the cluster for a request. A single response of the authorizer decides both identity and cluster."""

GROUP_HEADERS: Final = tuple(f"{INTERNAL_PREFIX}group-{number}" for number in range(32))
"""Headers with a group each. Of several headers with the same name, Envoy keeps only the last from the authorizer."""

TENANT_HEADER: Final = f"{INTERNAL_PREFIX}tenant"
"""Header with the key of the control plane for which a request counts."""
UNKNOWN_HEADER: Final = f"{INTERNAL_PREFIX}unknown"
"""Header with the key of the control plane of a request with an unverified token, which counts for its
client address.
"""
KNOWN_HEADER: Final = f"{INTERNAL_PREFIX}known"
"""Header of requests with a verified token, which count for their control plane (`credentials.py`)."""
VERIFY_HEADER: Final = f"{INTERNAL_PREFIX}verify"
"""Header of Envoy's question about a token alone, which does not wait for a control plane."""
LIMITED_BY_HEADER: Final = f"{INTERNAL_PREFIX}limited-by"
"""Header with the origin of the limits of a control plane, for people."""
BODY_HEADER: Final = f"{INTERNAL_PREFIX}body"
"""Header with the body limits of a mutating request (`bodies.py`)."""
FULL_HEADER: Final = f"{INTERNAL_PREFIX}full"
"""Header of requests to a control plane that has reached its storage quota."""

AUTHORIZER_HEADERS: Final = (
    UPSTREAM_HEADER,
    TENANT_HEADER,
    UNKNOWN_HEADER,
    LIMITED_BY_HEADER,
    BODY_HEADER,
    FULL_HEADER,
)
"""Headers about a request in the authorizer's response, without user, credential and groups."""

CHUNKED_HEADER: Final = f"{INTERNAL_PREFIX}chunked"
"""Header of requests with a chunked body (HTTP/1.1). Envoy removes `Transfer-Encoding` before its filters."""

OWN_HEADERS: Final = ("x-envoy-external-address", CHUNKED_HEADER, KNOWN_HEADER)
"""Headers that Envoy adds for itself. API servers do not need them."""

UNKNOWN_PRIORITY: Final = "HIGH"
"""Priority of requests with an unverified token. Envoy limits requests in flight by priority, and uses it for no other
purpose here.
"""

ANONYMOUS: Final = "anonymous"
"""Name of the cluster for requests without a credential, which show no use of a control plane."""

CONNECTIONS: Final = "connections"
"""Name of the statistics of a control plane with a host name."""

KEY_TYPE: Final = 0xE0
"""Type of the PROXY protocol field with the key of the control plane of a connection."""

USER_HEADER: Final = "x-remote-user"
CREDENTIAL_HEADER: Final = "x-remote-extra-authentication.kubernetes.io%2fcredential-id"

STRIPPED_PREFIXES: Final = (INTERNAL_PREFIX, "x-remote-", "x-forwarded-", "x-envoy-")
"""Prefixes of headers about the client. The listener removes such headers of clients before any other processing."""


def by_token(key: str, *, change: bool) -> str:
    """Return the name of the cluster for requests that carry their own credentials.

    Mutating requests have a separate cluster, so that Envoy counts, limits and connects them separately.
    """
    return f"{key}/changes" if change else key


def by_certificate(key: str, *, change: bool) -> str:
    """Return the name of the cluster for users whose certificate the gateway has verified.

    The cluster has the front-proxy certificate, so that the API server trusts the user that the gateway names.
    """
    return f"{key}/front-proxy-changes" if change else f"{key}/front-proxy"


def by_nobody(key: str) -> str:
    """Return the name of the cluster for requests without a credential, which has separate limits."""
    return f"{key}/{ANONYMOUS}"


def connections_of(key: str) -> str:
    """Return the name of the statistics for connections to the host name of a control plane."""
    return f"{key}/{CONNECTIONS}"


def by_host(host: str) -> str:
    """Return the name of the cluster of a host name. Due to the prefix, clients cannot name another kind of cluster."""
    return f"host/{host}"
