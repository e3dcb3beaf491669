"""Which clusters Envoy checks for readiness, and where requests wait meanwhile."""

from __future__ import annotations

from pathlib import PurePosixPath

from kplane.gateway.envoy.clusters import clusters
from kplane.gateway.envoy.readiness import ANSWER_HEADER
from kplane.gateway.envoy.routing import routing

from .fleet import route

ROOM = PurePosixPath("/run/waiting-room.sock")


def test_clusters_of_addresses_are_checked_by_the_front_proxy() -> None:
    found = clusters([route("one")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    assert {cluster["name"] for cluster in found if "health_checks" in cluster} == {
        "uid-one",
        "uid-one/changes",
        "uid-one/front-proxy",
        "uid-one/front-proxy-changes",
    }
    for cluster in found:
        (socket,) = cluster["transport_socket_matches"]
        context = socket["transport_socket"]["typed_config"]["common_tls_context"]
        assert context["tls_certificates"]
        waiting = cluster["load_assignment"]["endpoints"][1]
        assert waiting["priority"] == 1
        assert str(ROOM) in str(waiting)


def test_clusters_of_names_are_not_checked() -> None:
    """Envoy ends if such a cluster has a Unix socket, and a Service leads to ready pods."""
    found = clusters([route("one", host="one.acme.svc")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    assert found
    for cluster in found:
        assert cluster["type"] == "STRICT_DNS"
        assert "health_checks" not in cluster
        assert str(ROOM) not in str(cluster)


def test_answers_of_an_api_server_that_ends_are_tried_again() -> None:
    """One header of the answer has all that tells it from others, and the routes remove it."""
    found = clusters([route("one")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    for cluster in (each for each in found if "health_checks" in each):
        (options,) = cluster["typed_extension_protocol_options"].values()
        policy = options["retry_policy"]
        assert "retriable-headers" in policy["retry_on"].split(",")
        (header,) = policy["retriable_headers"]
        assert header["name"] == ANSWER_HEADER
        assert header["string_match"]["exact"].startswith("503/1/")
        assert ANSWER_HEADER in str(options["http_filters"][0])
        assert "upstream_codec" in str(options["http_filters"][-1])
    assert ANSWER_HEADER in routing([route("one")])["response_headers_to_remove"]


def test_api_server_that_is_not_ready_is_checked_often_before_the_first_connection() -> None:
    """Envoy fixes the time of the next check after the first one, which comes before any client of a wake."""
    found = clusters([route("one")], holder=PurePosixPath("/run/holder.sock"), waiting_room=ROOM)
    checks = [check for cluster in found for check in cluster.get("health_checks", ())]
    assert checks
    assert {check["no_traffic_interval"] for check in checks} == {check["unhealthy_interval"] for check in checks}
    assert {check["no_traffic_healthy_interval"] for check in checks} == {"10s"}
