"""Readiness checks of Envoy clusters, and the waiting room for requests to unready API servers."""

from __future__ import annotations

from pathlib import PurePosixPath

from kplane.gateway.envoy.clusters import clusters
from kplane.gateway.envoy.readiness import ANSWER_HEADER
from kplane.gateway.envoy.routing import routing

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
