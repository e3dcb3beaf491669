"""Which clusters Envoy checks for readiness, and where requests wait meanwhile."""

from __future__ import annotations

from pathlib import PurePosixPath

from kplane.gateway.envoy.clusters import clusters

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
