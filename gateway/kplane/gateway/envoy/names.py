"""Names in Envoy's configuration: clusters, files, and the headers between the authorizer and Envoy."""

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
"""Bytes of bodies that Envoy keeps of a connection, also while its request waits. `waker.py` bounds how many wait."""

BACKLOG: Final = 4096
"""Connections that Envoy opens to each service of the controller: its Unix socket would refuse more."""

CERTIFICATE_HEADER: Final = "x-forwarded-client-cert"
"""The certificate of the connection with its chain, for the authorizer: set by the listener, never by a client."""

CLIENT_HEADER: Final = "x-forwarded-for"
"""The address of the client: set by the listener, never by a client."""

PROTOCOL_HEADER: Final = "sec-websocket-protocol"
"""In which browsers send tokens."""

INTERNAL_PREFIX: Final = "x-kplane-"
"""Headers between the authorizer and Envoy; no API server gets them."""

UPSTREAM_HEADER: Final = f"{INTERNAL_PREFIX}upstream"
"""The cluster that a verified request goes to: the authorizer decides identity and destination in one answer."""

GROUP_HEADERS: Final = tuple(f"{INTERNAL_PREFIX}group-{number}" for number in range(32))
"""One for each group: of several headers with one name, Envoy would take the last one from the authorizer."""

TENANT_HEADER: Final = f"{INTERNAL_PREFIX}tenant"
"""The key of the control plane that a request counts for."""
UNKNOWN_HEADER: Final = f"{INTERNAL_PREFIX}unknown"
"""The key of the control plane that a request is for, whose token may be made up: it counts for its client address."""
KNOWN_HEADER: Final = f"{INTERNAL_PREFIX}known"
"""There, if the token of a request is good: the request counts for its control plane (`credentials.py`)."""
VERIFY_HEADER: Final = f"{INTERNAL_PREFIX}verify"
"""There, if Envoy asks the authorizer about a token alone, and no request waits for a control plane."""
LIMITED_BY_HEADER: Final = f"{INTERNAL_PREFIX}limited-by"
"""Who set its limits, for people."""
BODY_HEADER: Final = f"{INTERNAL_PREFIX}body"
"""The limits of the body of a request that changes something (`bodies.py`)."""
FULL_HEADER: Final = f"{INTERNAL_PREFIX}full"
"""There, if the control plane has reached its storage quota."""

AUTHORIZER_HEADERS: Final = (
    UPSTREAM_HEADER,
    TENANT_HEADER,
    UNKNOWN_HEADER,
    LIMITED_BY_HEADER,
    BODY_HEADER,
    FULL_HEADER,
)
"""What the authorizer says of a request, besides the groups."""

CHUNKED_HEADER: Final = f"{INTERNAL_PREFIX}chunked"
"""There, if the body of a request of HTTP/1.1 comes in chunks: Envoy removes `Transfer-Encoding` before its filters."""

OWN_HEADERS: Final = ("x-envoy-external-address", CHUNKED_HEADER, KNOWN_HEADER)
"""Headers that Envoy adds for itself, and that no API server needs."""

UNKNOWN_PRIORITY: Final = "HIGH"
"""Of requests whose token may be made up. Envoy limits requests in flight by priority; nothing else is meant by it."""

ANONYMOUS: Final = "anonymous"
"""Names the cluster of requests without a credential, which are no use of a control plane."""

CONNECTIONS: Final = "connections"
"""Names the statistics of a control plane that has a host name."""

KEY_TYPE: Final = 0xE0
"""Of the field in the header of the PROXY protocol with the key of the control plane that a connection is for."""

USER_HEADER: Final = "x-remote-user"
CREDENTIAL_HEADER: Final = "x-remote-extra-authentication.kubernetes.io%2fcredential-id"

STRIPPED_PREFIXES: Final = (INTERNAL_PREFIX, "x-remote-", "x-forwarded-", "x-envoy-")
"""Headers that say who the client is. What clients send of them is removed before anything else happens."""


def by_token(key: str, *, change: bool) -> str:
    """Name the cluster of a control plane's API server for requests that carry their own credentials.

    Those that change something have one of their own, by which Envoy counts, limits and connects them apart.
    """
    return f"{key}/changes" if change else key


def by_certificate(key: str, *, change: bool) -> str:
    """Name the cluster of the same API server for users whom the gateway has verified.

    It has the front-proxy certificate: the API server takes for true who the gateway says the user is.
    """
    return f"{key}/front-proxy-changes" if change else f"{key}/front-proxy"


def by_nobody(key: str) -> str:
    """Name the cluster of the same API server for requests without a credential, which have limits of their own."""
    return f"{key}/{ANONYMOUS}"


def connections_of(key: str) -> str:
    """Name the statistics of a control plane that has a host name: of connections, not of requests."""
    return f"{key}/{CONNECTIONS}"


def by_host(host: str) -> str:
    """Name the cluster that connections to a host name go to. No client can name another kind of cluster by it."""
    return f"host/{host}"
