"""Names in Envoy's configuration: clusters, files, and the headers between the authorizer and Envoy."""

from __future__ import annotations

from typing import Final

__all__ = [
    "AUTHORIZER",
    "CERTIFICATE_HEADER",
    "CREDENTIAL_HEADER",
    "GROUP_HEADERS",
    "INTERNAL_PREFIX",
    "LISTENER",
    "OWN_HEADERS",
    "PROTOCOL_HEADER",
    "ROUTES",
    "STRIPPED_PREFIXES",
    "UPSTREAM_HEADER",
    "USER_HEADER",
    "by_certificate",
    "by_token",
]

AUTHORIZER: Final = "authorizer"
LISTENER: Final = "gateway"
ROUTES: Final = "control-planes"

CERTIFICATE_HEADER: Final = "x-forwarded-client-cert"
"""The certificate of the connection with its chain, for the authorizer: set by the listener, never by a client."""

PROTOCOL_HEADER: Final = "sec-websocket-protocol"
"""In which browsers send tokens."""

INTERNAL_PREFIX: Final = "x-kplane-"
"""Headers between the authorizer and Envoy; no API server gets them."""

UPSTREAM_HEADER: Final = f"{INTERNAL_PREFIX}upstream"
"""The cluster that a verified request goes to: the authorizer decides identity and destination in one answer."""

GROUP_HEADERS: Final = tuple(f"{INTERNAL_PREFIX}group-{number}" for number in range(32))
"""One for each group: of several headers with one name, Envoy would take the last one from the authorizer."""

OWN_HEADERS: Final = ("x-envoy-external-address",)
"""What Envoy adds for itself, and an API server has no use for."""

USER_HEADER: Final = "x-remote-user"
CREDENTIAL_HEADER: Final = "x-remote-extra-authentication.kubernetes.io%2fcredential-id"

STRIPPED_PREFIXES: Final = (INTERNAL_PREFIX, "x-remote-", "x-forwarded-", "x-envoy-")
"""Headers that say who the client is. What clients send of them is removed before anything else happens."""


def by_token(key: str) -> str:
    """Name the cluster of a control plane's API server for requests that carry their own credentials."""
    return key


def by_certificate(key: str) -> str:
    """Name the cluster of the same API server for users whom the gateway has verified.

    It has the front-proxy certificate: the API server takes for true who the gateway says the user is.
    """
    return f"{key}/front-proxy"
