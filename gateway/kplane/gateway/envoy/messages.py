"""Parts of messages of Envoy's API that several parts of the configuration use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

import orjson

from kplane.gateway.routes import KeyPair

__all__ = [
    "FILTERS",
    "HTTP_OPTIONS",
    "TLS",
    "Message",
    "certificate",
    "discovery_response",
    "file_source",
    "typed",
    "unix_socket",
    "version_of",
]

Message = dict[str, Any]
"""Message of Envoy's API, as JSON."""

_TYPES: Final = "type.googleapis.com"
FILTERS: Final = "envoy.extensions.filters"
HTTP_OPTIONS: Final = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
TLS: Final = "envoy.extensions.transport_sockets.tls.v3"


def typed(name: str, /, **fields: Any) -> Message:
    """Return a message with its type, as fields of type Any require."""
    return {"@type": f"{_TYPES}/{name}", **fields}


def discovery_response(resources: Iterable[Message]) -> bytes:
    """Return a file with all resources of a kind. Its version is a digest, so equal resources give equal files."""
    listed = list(resources)
    version = hashlib.sha256(orjson.dumps(listed, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]
    return orjson.dumps({"version_info": version, "resources": listed})


def version_of(response: bytes) -> str:
    """Return the version that `discovery_response` gave a file."""
    return str(orjson.loads(response)["version_info"])


def file_source(path: str) -> Message:
    """Return the source of a kind of resource: a file that Envoy rereads after a rename in its directory."""
    directory, _, _ = path.rpartition("/")
    source = {"path": path, "watched_directory": {"path": directory}}
    return {"path_config_source": source, "resource_api_version": "V3"}


def certificate(pair: KeyPair) -> Message:
    """Return a certificate with its private key."""
    return {
        "certificate_chain": {"inline_string": pair.certificate.decode("ascii")},
        "private_key": {"inline_string": pair.key.decode("ascii")},
    }


def unix_socket(path: str) -> Message:
    """Return the address of a Unix socket."""
    return {"pipe": {"path": path, "mode": 0o600}}
