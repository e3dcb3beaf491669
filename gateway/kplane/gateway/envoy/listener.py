"""Listener of the gateway: TLS, HTTP, and the filters that process each request before its route."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.access_log import access_logs
from kplane.gateway.envoy.bodies import body_limit, expectation
from kplane.gateway.envoy.credentials import credentials
from kplane.gateway.envoy.host_names import host_filter_chains, reading_host_names
from kplane.gateway.envoy.messages import FILTERS, TLS, Message, certificate, discovery_response, file_source, typed
from kplane.gateway.envoy.names import (
    AUTHORIZER,
    CERTIFICATE_HEADER,
    CHUNKED_HEADER,
    CLIENT_HEADER,
    CONNECTION_BUFFER,
    CREDENTIAL_HEADER,
    INTERNAL_PREFIX,
    LISTENER,
    PROTOCOL_HEADER,
    ROUTES,
    STRIPPED_PREFIXES,
    USER_HEADER,
)
from kplane.gateway.envoy.rates import rate_limit
from kplane.gateway.envoy.redirects import redirects
from kplane.gateway.envoy.replies import AUTHORIZER_FAILED, local_replies
from kplane.gateway.routes import KeyPair

__all__ = ["AUTHORIZER_SECONDS", "Serving", "listener", "serving_files"]

AUTHORIZER_SECONDS: Final = 75
"""Maximum seconds that a request waits for the authorizer, which holds requests to control planes that wake up."""

_CERTIFICATE: Final = "serving"
_CLIENT_CA: Final = "client-ca"
_MANAGER: Final = f"{FILTERS}.network.http_connection_manager.v3"
_AUTHORIZATION: Final = f"{FILTERS}.http.ext_authz.v3"
_ROUTER: Final = f"{FILTERS}.http.router.v3"
_MUTATION: Final = "envoy.extensions.http.early_header_mutation.header_mutation.v3"

_HEADERS_KIB: Final = 96
_STREAMS: Final = 250
"""Maximum number of streams on a connection, as in kube-apiserver. client-go opens another connection beyond it."""
_STREAM_WINDOW: Final = 256 << 10
_CONNECTION_WINDOW: Final = 4 << 20
_REQUEST_TIMEOUT: Final = "3600s"
"""Maximum time until a whole request has arrived, unless its response begins. `bodies.py` has shorter limits for
requests that pause.
"""
_HANDSHAKE_TIMEOUT: Final = "10s"
"""Maximum time until the first message of TLS has arrived, and then until the handshake is complete."""
_HEADERS_TIMEOUT: Final = "10s"
"""Maximum time from the first byte of a request until all its headers have arrived."""
_UPGRADES: Final = ("websocket", "SPDY/3.1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Address and serving certificate of the gateway."""

    host: str
    """IP address to listen on."""
    port: int
    certificate: KeyPair


def serving_files(serving: Serving) -> dict[str, bytes]:
    """Return the files with the serving certificate, and with the CA that makes Envoy request client certificates, by
    name.
    """
    secrets = {
        _CERTIFICATE: {"tls_certificate": certificate(serving.certificate)},
        _CLIENT_CA: {"validation_context": _client_ca(serving)},
    }
    return {
        _file(name): discovery_response([typed(f"{TLS}.Secret", name=name, **secret)])
        for name, secret in secrets.items()
    }


def _file(secret: str) -> str:
    return f"{secret}.json"


def listener(
    serving: Serving,
    *,
    routes: str | Message,
    secrets: PurePosixPath | None,
    changes: PurePosixPath,
    domains: Iterable[str] = (),
) -> Message:
    """Return the listener.

    `routes` is the route configuration, or the path of its file. `secrets` is the directory of `serving_files`; None
    puts the certificate into the listener itself, for a configuration that is only validated. `changes` is the log file
    for mutating requests in flight. Connections to names below `domains` pass through.
    """
    transport = typed(f"{TLS}.DownstreamTlsContext", **_tls(serving, secrets=secrets))
    manager = typed(f"{_MANAGER}.HttpConnectionManager", **_http(routes, changes=changes))
    return {
        "name": LISTENER,
        "address": {"socket_address": {"address": serving.host, "port_value": serving.port}},
        "per_connection_buffer_limit_bytes": CONNECTION_BUFFER,
        "tcp_keepalive": {"keepalive_time": 60, "keepalive_interval": 15, "keepalive_probes": 4},
        "listener_filters": [reading_host_names()],
        "listener_filters_timeout": _HANDSHAKE_TIMEOUT,
        "filter_chains": [
            *host_filter_chains(domains),
            {
                "transport_socket": {"name": "tls", "typed_config": transport},
                "transport_socket_connect_timeout": _HANDSHAKE_TIMEOUT,
                "filters": [{"name": "http", "typed_config": manager}],
            },
        ],
    }


def _tls(serving: Serving, *, secrets: PurePosixPath | None) -> Message:
    common: Message = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": ["h2", "http/1.1"],
    }
    if secrets is None:
        common["tls_certificates"] = [certificate(serving.certificate)]
        common["validation_context"] = _client_ca(serving)
    else:
        common["tls_certificate_sds_secret_configs"] = [_secret(_CERTIFICATE, directory=secrets)]
        common["validation_context_sds_secret_config"] = _secret(_CLIENT_CA, directory=secrets)
    return {"common_tls_context": common, "require_client_certificate": False}


def _secret(name: str, *, directory: PurePosixPath) -> Message:
    return {"name": name, "sds_config": file_source(str(directory / _file(name)))}


def _client_ca(serving: Serving) -> Message:
    """Return a validation context that requests client certificates, and accepts any.

    The control plane decides whose certificates are valid, and its path arrives later. Envoy requests a certificate
    only if it has a CA, and sends the name of this CA to each client. The CAs of tenants would reveal these tenants, so
    the gateway's own certificate takes their place.
    """
    own = serving.certificate.certificate.decode("ascii")
    return {"trusted_ca": {"inline_string": own}, "trust_chain_verification": "ACCEPT_UNTRUSTED"}


def _http(routes: str | Message, *, changes: PurePosixPath) -> Message:
    source = {"config_source": file_source(routes), "route_config_name": ROUTES} if isinstance(routes, str) else None
    return {
        "stat_prefix": LISTENER,
        "codec_type": "AUTO",
        **({"rds": source} if source is not None else {"route_config": routes}),
        "http_filters": [
            credentials(),
            _authorizer(),
            rate_limit(),
            body_limit(),
            expectation(),
            redirects(),
            _router(),
        ],
        "local_reply_config": local_replies(),
        **access_logs(changes),
        "early_header_mutation_extensions": [_stripping()],
        # Identity of the client: its address, and its certificate for the authorizer.
        "use_remote_address": True,
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"chain": True},
        # Keep the path as the client sent it. The route configuration refuses ambiguous paths.
        "normalize_path": False,
        "merge_slashes": False,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "common_http_protocol_options": {
            "headers_with_underscores_action": "DROP_HEADER",
            "idle_timeout": "3600s",
        },
        "http_protocol_options": {"accept_http_10": False, "allow_chunked_length": False},
        "http2_protocol_options": {
            "max_concurrent_streams": _STREAMS,
            "initial_stream_window_size": _STREAM_WINDOW,
            "initial_connection_window_size": _CONNECTION_WINDOW,
            "connection_keepalive": {"interval": "30s", "timeout": "20s"},
            "allow_connect": False,
        },
        "max_request_headers_kb": _HEADERS_KIB,
        "request_headers_timeout": _HEADERS_TIMEOUT,
        "request_timeout": _REQUEST_TIMEOUT,
        "stream_idle_timeout": "0s",
        "upgrade_configs": [{"upgrade_type": kind} for kind in _UPGRADES],
        "server_header_transformation": "PASS_THROUGH",
    }


def _authorizer() -> Message:
    route_headers = ({"prefix": INTERNAL_PREFIX}, {"exact": USER_HEADER}, {"exact": CREDENTIAL_HEADER})
    client_headers = ({"exact": "content-type"}, {"exact": "retry-after"})
    uri = {"uri": f"http://{AUTHORIZER}", "cluster": AUTHORIZER, "timeout": f"{AUTHORIZER_SECONDS}s"}
    response = {
        "allowed_upstream_headers": {"patterns": route_headers},
        "allowed_client_headers": {"patterns": client_headers},
    }
    service = typed(
        f"{_AUTHORIZATION}.ExtAuthz",
        transport_api_version="V3",
        http_service={"server_uri": uri, "authorization_response": response},
        allowed_headers={
            "patterns": [{"exact": name} for name in (CERTIFICATE_HEADER, CLIENT_HEADER, PROTOCOL_HEADER)]
        },
        # The authorizer's response names the cluster.
        clear_route_cache=True,
        failure_mode_allow=False,
        status_on_error={"code": AUTHORIZER_FAILED},
    )
    return {"name": AUTHORIZER, "typed_config": service}


def _router() -> Message:
    return {"name": "router", "typed_config": typed(f"{_ROUTER}.Router", suppress_envoy_headers=True)}


def _stripping() -> Message:
    mutations: list[Message] = [
        {"remove_on_match": {"key_matcher": {"prefix": prefix, "ignore_case": True}}} for prefix in STRIPPED_PREFIXES
    ]
    chunked = {"key": CHUNKED_HEADER, "value": "%REQ(transfer-encoding)%"}
    mutations.append({"append": {"header": chunked, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}})
    return {"name": "strip", "typed_config": typed(f"{_MUTATION}.HeaderMutation", mutations=mutations)}
