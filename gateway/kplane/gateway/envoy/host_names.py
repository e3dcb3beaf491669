"""Control planes by host name: Envoy passes TLS through, and selects the cluster by the host name in it (SNI)."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Final

from kplane.gateway.envoy.messages import FILTERS, Message, typed
from kplane.gateway.envoy.names import KEY_TYPE, by_host, connections_of
from kplane.gateway.routes import Route, Upstream

__all__ = ["domains_of", "host_cluster", "host_filter_chains", "proxy_header", "reading_host_names"]

_INSPECTOR: Final = f"{FILTERS}.listener.tls_inspector.v3"
_STATE: Final = f"{FILTERS}.network.set_filter_state.v3"
_PROXY: Final = f"{FILTERS}.network.tcp_proxy.v3"
_PROXY_HEADER: Final = "envoy.extensions.transport_sockets.proxy_protocol.v3"
_PLAIN: Final = "envoy.extensions.transport_sockets.raw_buffer.v3"
_STDOUT: Final = "envoy.extensions.access_loggers.stream.v3.StdoutAccessLog"
_NAME: Final = "%REQUESTED_SERVER_NAME%"
_NONE: Final = "none"

_CONNECT_TIMEOUT: Final = "3s"
_ATTEMPTS: Final = 150
"""Maximum number of attempts to connect. Envoy checks an unused cluster every ten seconds (`readiness.py`), and then
connects to the holder. All attempts together take 15 s on average.
"""
_BACKOFF: Final = {"base_interval": "0.2s", "max_interval": "0.2s"}
"""Maximum time between two attempts. Envoy takes a random part of it."""
_MOST_CONNECTIONS: Final = 4096
"""Maximum number of connections of a control plane. Envoy's default is 1,024, and a client of client-go has
up to two.
"""
_KEEPALIVE: Final = {"keepalive_time": 30, "keepalive_interval": 10, "keepalive_probes": 3}

_LOG: Final = {
    "time": "%START_TIME%",
    "host": _NAME,
    "upstream": "%UPSTREAM_CLUSTER%",
    "details": "%CONNECTION_TERMINATION_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "received": "%BYTES_RECEIVED%",
    "sent": "%BYTES_SENT%",
    "milliseconds": "%DURATION%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
}


def domains_of(routes: Iterable[Route]) -> list[str]:
    """Return the domains of all host names. An operator has a single domain."""
    return sorted({route.domain for route in routes if route.host})


def reading_host_names() -> Message:
    """Return the listener filter that reads the host name which a client requests.

    The filter is always present: Envoy replaces a listener whose filters change, and all its connections with it.
    """
    return {"name": "host-names", "typed_config": typed(f"{_INSPECTOR}.TlsInspector")}


def host_filter_chains(domains: Iterable[str]) -> list[Message]:
    """Return the filter chains for connections to host names below these domains.

    The chains do not depend on the host names. So control planes come and go without a change of the listener. Envoy
    closes a connection to a host name without a cluster.
    """
    names = [f"*.{domain}" for domain in domains]
    if not names:
        return []
    cluster = {
        "object_key": "envoy.tcp_proxy.cluster",
        "format_string": {"text_format_source": {"inline_string": by_host(_NAME)}},
    }
    proxy = typed(
        f"{_PROXY}.TcpProxy",
        stat_prefix="hosts",
        # The filter state overrides this name. No cluster has this name.
        cluster=_NONE,
        # No timeout, since a watch lasts for hours. Client and server end the connection.
        idle_timeout="0s",
        max_connect_attempts=_ATTEMPTS,
        backoff_options=_BACKOFF,
        access_log=[{"name": "stdout", "typed_config": typed(_STDOUT, log_format={"json_format": _LOG})}],
    )
    return [
        {
            "filter_chain_match": {"server_names": names},
            "filters": [
                {"name": "cluster", "typed_config": typed(f"{_STATE}.Config", on_new_connection=[cluster])},
                {"name": "tcp", "typed_config": proxy},
            ],
        }
    ]


def host_cluster(route: Route, upstream: Upstream, *, holder: PurePosixPath) -> Message:
    """Return the cluster of a host name, with the API server as target, or the holder while the control plane sleeps.

    Envoy names the control plane to the holder in a PROXY protocol header. The holder interprets no bytes of the
    client.
    """
    if route.asleep is None:
        address: Message = {"socket_address": {"address": upstream.host, "port_value": upstream.port}}
        leading: Message = {
            "type": "STATIC" if upstream.is_address else "STRICT_DNS",
            "upstream_connection_options": {"tcp_keepalive": _KEEPALIVE},
        }
    else:
        address = {"pipe": {"path": str(holder)}}
        leading = {"type": "STATIC", "transport_socket": proxy_header(route.key)}
    name = by_host(route.host)
    return {
        "name": name,
        # Statistics are named by the key of the control plane, as for requests by path.
        "alt_stat_name": connections_of(route.key),
        **leading,
        "connect_timeout": _CONNECT_TIMEOUT,
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "circuit_breakers": {
            "thresholds": [dict.fromkeys(("max_connections", "max_pending_requests"), _MOST_CONNECTIONS)]
        },
    }


def proxy_header(key: str) -> Message:
    """Return the transport socket that names a control plane to the holder in a PROXY protocol header."""
    field = {"type": KEY_TYPE, "value": base64.b64encode(key.encode()).decode()}
    transport = typed(
        f"{_PROXY_HEADER}.ProxyProtocolUpstreamTransport",
        config={"version": "V2", "added_tlvs": [field]},
        transport_socket={"name": "plain", "typed_config": typed(f"{_PLAIN}.RawBuffer")},
    )
    return {"name": "held", "typed_config": transport}
