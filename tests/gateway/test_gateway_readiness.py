"""Readiness checks of Envoy clusters, and the waiting room for requests to unready API servers."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import PurePosixPath

from kplane.gateway.envoy.clusters import clusters
from kplane.gateway.envoy.host_names import host_filter_chains
from kplane.gateway.envoy.readiness import ANSWER_HEADER
from kplane.gateway.envoy.routing import routing
from kplane.gateway.routes import Route, Sleep, Upstream

from .fleet import route

ROOM = PurePosixPath("/run/waiting-room.sock")


def test_clusters_of_addresses_have_readiness_checks() -> None:
    configs = clusters([route("one")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    assert {cluster["name"] for cluster in configs if "health_checks" in cluster} == {
        "uid-one",
        "uid-one/changes",
        "uid-one/front-proxy",
        "uid-one/front-proxy-changes",
    }
    for cluster in configs:
        (socket,) = cluster["transport_socket_matches"]
        context = socket["transport_socket"]["typed_config"]["common_tls_context"]
        assert context["tls_certificates"]
        endpoint = cluster["load_assignment"]["endpoints"][1]
        assert endpoint["priority"] == 1
        assert str(ROOM) in str(endpoint)


def _by_host(name: str, *, host: str = "127.0.0.1") -> Route:
    upstream = Upstream.behind(f"https://{host}:6443")
    return Route(key=f"uid-{name}", cluster_path=name, upstream=upstream, host=f"{name}.example.org")


def test_cluster_of_host_name_has_holder_while_api_server_is_unready() -> None:
    holder = PurePosixPath("/run/holder.sock")
    (cluster,) = clusters([_by_host("one")], holder=holder, waiting_room=ROOM)
    first, second = cluster["load_assignment"]["endpoints"]
    assert "priority" not in first
    assert "metadata" not in first["lb_endpoints"][0]
    (held,) = second["lb_endpoints"]
    assert (second["priority"], held["endpoint"]["address"]["pipe"]["path"]) == (1, str(holder))
    assert held["endpoint"]["health_check_config"] == {"disable_active_health_check": True}
    assert cluster["common_lb_config"] == {"healthy_panic_threshold": {"value": 0}}
    # Clients speak TLS through the cluster. Only the check has TLS of its own, and only the holder a PROXY header.
    assert "transport_socket" not in cluster
    sockets = {found["name"]: found for found in cluster["transport_socket_matches"]}
    (check,) = cluster["health_checks"]
    assert check["transport_socket_match_criteria"] == sockets["check"]["match"]
    assert held["metadata"]["filter_metadata"]["envoy.transport_socket_match"] == sockets["held"]["match"]
    assert "UpstreamTlsContext" in str(sockets["check"]["transport_socket"])
    assert "ProxyProtocolUpstreamTransport" in str(sockets["held"]["transport_socket"])
    # The check has no credential: it must not say that it is an administrator to a server that Envoy does not verify.
    asked = check["http_health_check"]
    assert asked["path"].startswith("/readyz?")
    assert asked["request_headers_to_add"] == []
    assert [status["start"] for status in asked["expected_statuses"]] == [200, 401]


def test_cluster_of_sleeping_host_name_or_service_has_no_check() -> None:
    routes = [
        dataclasses.replace(_by_host("one"), asleep=Sleep(name="one", since=datetime.now(UTC))),
        _by_host("two", host="two.acme.svc"),
    ]
    for cluster in clusters(routes, holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM):
        assert "health_checks" not in cluster
        assert len(cluster["load_assignment"]["endpoints"]) == 1


def test_connections_to_host_names_are_tried_again() -> None:
    """Envoy notices after a second that an API server has ended, and connects to the holder then."""
    (chain,) = host_filter_chains(["example.org"])
    proxy = chain["filters"][-1]["typed_config"]
    assert proxy["max_connect_attempts"] > 1
    assert proxy["backoff_options"]["base_interval"] == "0.2s"


def test_clusters_of_dns_names_have_no_readiness_checks() -> None:
    """Envoy exits if a DNS cluster has a Unix socket. A Service leads to ready pods anyway."""
    configs = clusters([route("one", host="one.acme.svc")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    assert configs
    for cluster in configs:
        assert cluster["type"] == "STRICT_DNS"
        assert "health_checks" not in cluster
        assert str(ROOM) not in str(cluster)


def test_cluster_retries_503_of_stopping_api_server() -> None:
    """A response header identifies such answers, and the routes remove the header."""
    configs = clusters([route("one")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    for cluster in (config for config in configs if "health_checks" in config):
        (options,) = cluster["typed_extension_protocol_options"].values()
        policy = options["retry_policy"]
        assert "retriable-headers" in policy["retry_on"].split(",")
        (header,) = policy["retriable_headers"]
        assert header["name"] == ANSWER_HEADER
        assert header["string_match"]["exact"].startswith("503/1/")
        assert ANSWER_HEADER in str(options["http_filters"][0])
        assert "upstream_codec" in str(options["http_filters"][-1])
    assert ANSWER_HEADER in routing([route("one")])["response_headers_to_remove"]


def test_unready_api_server_is_checked_often_without_traffic() -> None:
    """Envoy schedules the next check at the first check, before any client of a wake-up is connected."""
    configs = clusters([route("one")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    checks = [check for cluster in configs for check in cluster.get("health_checks", ())]
    assert checks
    assert {check["no_traffic_interval"] for check in checks} == {check["unhealthy_interval"] for check in checks}
    assert {check["no_traffic_healthy_interval"] for check in checks} == {"10s"}
