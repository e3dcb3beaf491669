"""Which control planes the gateway serves, and what it needs of each."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from kplane.api.names import (
    UID_ANNOTATION,
    WAKE_REQUESTED_ANNOTATION,
    WRITES_HELD_UNTIL_ANNOTATION,
    gateway_secret_name,
)
from kplane.gateway.control_planes import RouteTable, route_of
from kplane.gateway.errors import RouteInvalid
from kplane.gateway.routes import Limits, Route, Upstream
from kplane.provider import Informer

from .fleet import route

UID = "0f6ee4e0-cbd0-4a0c-a9cf-1f1f1f1f1f1f"


def control_plane(**changes: Any) -> dict[str, Any]:
    published = {"clusterPath": "acme", "phase": "Ready", "endpoint": "https://127.0.0.1:6443"}
    status = published | changes.pop("status", {})
    return {"metadata": {"name": "acme", "uid": UID}, "spec": {"mode": "Virtual"} | changes, "status": status}


def secret(*, uid: str = UID, **changes: bytes | None) -> dict[str, Any]:
    good = route("acme").upstream
    assert good is not None
    assert good.front_proxy is not None
    values = {
        "server": b"https://127.0.0.1:6443",
        "ca.crt": good.ca,
        "client-ca.crt": good.front_proxy.client_ca,
        "sa.pub": b"".join(good.trust.keys),
        "tls.crt": good.front_proxy.certificate.certificate,
        "tls.key": good.front_proxy.certificate.key,
    } | {name.replace("_", "."): value for name, value in changes.items()}
    data = {name: base64.b64encode(value).decode() for name, value in values.items() if value is not None}
    return {"metadata": {"name": "controlplane-acme", "annotations": {UID_ANNOTATION: uid}}, "data": data}


def by_host(host: bytes = b"acme.example.org", server: bytes | None = b"https://127.0.0.1:6443") -> dict[str, Any]:
    others = dict.fromkeys(("ca_crt", "client-ca.crt", "sa_pub", "tls_crt", "tls_key"), None)
    return secret(host=host, server=server, **others)


def test_one_with_a_secret_is_served_by_its_uid() -> None:
    found = route_of(control_plane(), secret())
    assert found is not None
    assert (found.key, found.cluster_path) == (UID, "acme")
    assert found.upstream is not None
    assert (found.upstream.host, found.upstream.port) == ("127.0.0.1", 6443)


@pytest.mark.parametrize("given", [secret(), by_host()])
@pytest.mark.parametrize("path", ["acme", None])
def test_route_of_unpublished_control_plane_has_requests_wait(given: dict[str, Any], path: str | None) -> None:
    """Its Secret is there before its status, which may say then that it sleeps. Nobody asks it to wake."""
    found = route_of(control_plane(status={"phase": "Provisioning", "endpoint": None, "clusterPath": path}), given)
    assert found is not None
    assert (found.cluster_path, found.upstream is not None) == ("acme", True)
    assert found.asleep is not None
    assert found.asleep.is_asked(datetime.now(UTC))


def test_route_of_unpublished_control_plane_has_the_path_of_its_spec() -> None:
    given = control_plane(virtual={"clusterPath": "team"}, status={"endpoint": None, "clusterPath": None})
    found = route_of(given, secret())
    assert found is not None
    assert found.cluster_path == "team"
    assert route_of(given, None) is None


def test_one_that_is_published_under_the_gateway_is_served_without_a_secret_too() -> None:
    own = {"type": "Internal", "url": "https://10.0.0.1:6443"}
    ours = {"type": "External", "url": "https://api.example.org/clusters/acme/control-plane"}
    found = route_of(control_plane(status={"endpoints": [own, ours]}), None)
    assert found is not None
    assert found.upstream is None


def test_one_of_mode_dedicated_is_served_where_it_is_published() -> None:
    ours = {"type": "External", "url": "https://api.example.org/clusters/acme/control-plane"}
    found = route_of(control_plane(mode="Dedicated", status={"clusterPath": None, "endpoints": [ours]}), secret())
    assert found is not None
    assert (found.cluster_path, found.upstream is not None) == ("acme", True)
    own = {"type": "External", "url": "https://acme.example.org:6443"}
    assert route_of(control_plane(mode="Dedicated", status={"clusterPath": None, "endpoints": [own]}), secret()) is None


@pytest.mark.parametrize(
    "given",
    [
        None,
        secret(uid="that-of-an-earlier-one"),
        secret(server=None),
        secret(server=b"https://127.0.0.1:6443/clusters/other/control-plane"),
        secret(server=b"https://\xff"),
        secret(ca_crt=b"x"),
        secret(tls_key=b"x"),
        secret(sa_pub=None),
        secret(sa_pub=b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"),
        {"metadata": {"name": "x", "annotations": {UID_ANNOTATION: UID}}, "data": {"server": "%%%"}},
        {"metadata": {"name": "x"}},
    ],
)
def test_one_without_a_usable_secret_answers_that_it_is_absent(given: Any) -> None:
    found = route_of(control_plane(), given)
    assert found is not None
    assert found.upstream is None
    assert found.why_absent


@pytest.mark.parametrize(
    "given",
    [
        None,
        control_plane(status={"clusterPath": None}),
        control_plane(status={"clusterPath": "../other"}),
        control_plane(status={"clusterPath": "root"}),
        control_plane(endpointRef={"name": "elsewhere"}),
        control_plane(status={"endpoints": [{"type": "External", "url": "https://acme.example.org:6443"}]}),
    ],
)
def test_one_without_a_path_and_one_that_others_serve_are_not_served(given: Any) -> None:
    assert route_of(given, secret()) is None


def test_the_limits_of_its_class_are_those_of_its_route() -> None:
    found = route_of(control_plane(), secret(limits_json=b'{"class": "small", "requestsPerSecond": 50}'))
    assert found is not None
    assert found.limits == Limits(set_by="ControlPlaneClass small", requests_per_second=50)
    assert not found.full
    without = route_of(control_plane(), secret())
    assert without is not None
    assert without.limits == Limits()


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]",
        b"{}",
        b'{"class": "a%REQ(x)%"}',
        b'{"class": "a", "requestBytes": "1Mi"}',
        b'{"class": 1}',
        b'{"class": "a", "requestsInFlight": 0}',
        b'{"class": "a", "requestsInFlight": true}',
    ],
)
def test_limits_that_cannot_be_read_keep_the_route_back(damaged: bytes) -> None:
    found = route_of(control_plane(), secret(limits_json=damaged))
    assert found is not None
    assert found.upstream is None


@pytest.mark.parametrize(
    ("storage", "full"),
    [
        (None, False),
        ({"bytes": 5}, False),
        ({"bytes": 5, "quotaBytes": 6}, False),
        ({"bytes": 6, "quotaBytes": 6}, True),
    ],
)
def test_one_is_full_if_it_has_reached_its_quota(storage: Any, full: bool) -> None:
    found = route_of(control_plane(status={"storage": storage}), secret())
    assert found is not None
    assert found.full is full


ELSEWHERE = {"endpoints": [{"type": "External", "url": "https://acme.example.org"}]}


@pytest.mark.parametrize("status", [{}, ELSEWHERE])
def test_one_with_a_host_name_in_its_secret_is_served_by_that_name(status: dict[str, Any]) -> None:
    found = route_of(control_plane(status=status), by_host())
    assert found is not None
    assert (found.key, found.cluster_path, found.host, found.domain) == (UID, "acme", "acme.example.org", "example.org")
    assert found.upstream is not None
    assert (found.upstream.host, found.upstream.port, found.upstream.ca) == ("127.0.0.1", 6443, b"")
    assert found.upstream.front_proxy is None


def test_a_dedicated_one_is_served_by_the_host_name_that_begins_with_its_name() -> None:
    dedicated = control_plane(mode="Dedicated", status={**ELSEWHERE, "clusterPath": None})
    found = route_of(dedicated, by_host())
    assert found is not None
    assert (found.cluster_path, found.host) == ("acme", "acme.example.org")


def test_no_hold_of_one_by_host_name_is_confirmed() -> None:
    """The gateway does not see its requests, so that it cannot tell when no change is in flight."""
    given = by_host()
    given["metadata"]["annotations"][WRITES_HELD_UNTIL_ANNOTATION] = "2026-11-23T12:00:00Z"
    found = route_of(control_plane(), given)
    assert found is not None
    assert found.held is None


@pytest.mark.parametrize(
    "given",
    [
        # The name of another control plane, and names that nothing leads to.
        by_host(b"globex.example.org"),
        by_host(b"example.org"),
        by_host(b"acme"),
        by_host(b"acme.*"),
        by_host(b"acme.EXAMPLE.org"),
        by_host(b"acme.example.org\n"),
        by_host(b"acme." + b"a" * 250),
        by_host(b""),
        by_host(b"\xff"),
        by_host(server=None),
        by_host(server=b"https://127.0.0.1:6443/path"),
    ],
)
def test_a_damaged_secret_with_a_host_name_is_not_served(given: dict[str, Any]) -> None:
    assert route_of(control_plane(status=ELSEWHERE), given) is None


def test_one_by_path_needs_the_ca_of_its_api_server() -> None:
    with pytest.raises(RouteInvalid, match="not served by path"):
        Route(key=UID, cluster_path="acme", upstream=Upstream.behind("https://127.0.0.1:6443"))


SINCE = datetime(2026, 11, 23, 12, 0, 0, 250_000, tzinfo=UTC)


def sleeper(requested: str | None = None, **hibernation: Any) -> dict[str, Any]:
    found = control_plane(status={"hibernation": {"since": "2026-11-23T12:00:00.250000Z"} | hibernation})
    if requested is not None:
        found["metadata"]["annotations"] = {WAKE_REQUESTED_ANNOTATION: requested}
    return found


def test_one_that_sleeps_has_an_upstream_and_says_so() -> None:
    found = route_of(sleeper("2026-11-23T13:00:00+01:00"), secret())
    assert found is not None
    assert found.upstream is not None
    assert found.upstream.trust.keys
    assert found.asleep is not None
    assert (found.asleep.name, found.asleep.since) == ("acme", SINCE)
    assert found.asleep.requested == datetime(2026, 11, 23, 12, tzinfo=UTC)
    awake = route_of(control_plane(), secret())
    assert awake is not None
    assert awake.asleep is None


def test_one_that_waits_for_room_is_known_as_such() -> None:
    for reason, crowded in (("WaitsForRoom", True), ("Hibernated", False)):
        given = sleeper()
        given["status"]["conditions"] = [{"type": "Hibernated", "status": "True", "reason": reason}]
        found = route_of(given, secret())
        assert found is not None
        assert found.asleep is not None
        assert found.asleep.crowded is crowded


@pytest.mark.parametrize(
    ("phase", "ready", "failed", "problem"),
    [
        (
            "Failed",
            {"status": "False", "message": "Secret x is damaged;\n restore it"},
            True,
            "Secret x is damaged; restore it",
        ),
        ("Failed", {"status": "False", "message": "a" * 2000}, True, "a" * 1023 + "…"),
        ("Failed", {"status": "False"}, True, ""),
        ("Unavailable", {"status": "False", "message": "etcd is away"}, False, "etcd is away"),
        ("Waking", {"status": "True", "message": "its API server starts"}, False, ""),
        ("Hibernated", None, False, ""),
    ],
)
def test_route_has_the_cause_when_a_sleeper_is_not_ready(
    phase: str, ready: dict[str, str] | None, failed: bool, problem: str
) -> None:
    given = sleeper()
    given["status"]["phase"] = phase
    given["status"]["conditions"] = [{"type": "Ready", "reason": "x"} | ready] if ready is not None else []
    found = route_of(given, secret())
    assert found is not None
    assert found.asleep is not None
    assert (found.asleep.failed, found.asleep.problem) == (failed, problem)


@pytest.mark.parametrize("requested", [None, "", "soon", "2026-11-23T13:00:00", "2026-11-23"])
def test_what_is_no_time_with_a_zone_is_no_request(requested: str | None) -> None:
    found = route_of(sleeper(requested), secret())
    assert found is not None
    assert found.asleep is not None
    assert found.asleep.requested is None


def test_one_that_sleeps_without_a_secret_is_absent() -> None:
    found = route_of(sleeper(), None)
    assert found is not None
    assert (found.upstream, found.asleep) == (None, None)


class Known:
    """Stands for an informer: what is known, and how often it was decoded."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.decoded: list[str] = []

    def get(self, name: str, *, namespace: str | None = None) -> dict[str, Any] | None:
        self.decoded.append(name)
        return self.objects.get(name)


class Cluster:
    """Control planes and their Secrets, and a table that follows them."""

    def __init__(self) -> None:
        self.control_planes, self.secrets = Known(), Known()
        informers = cast("tuple[Informer, Informer]", (self.control_planes, self.secrets))
        self.table = RouteTable(*informers, namespace="kplane-gateway")
        self.version = 1

    def put(self, name: str, *, path: str | None = None, uid: str | None = None, **status: Any) -> None:
        made = control_plane(status={"clusterPath": path or name} | status)
        made["metadata"] = {"name": name, "uid": uid or f"uid-{name}"}
        self.control_planes.objects[name] = made
        self.table.control_plane(name, self.version)

    def publish(self, name: str, *, host: bytes | None = None) -> None:
        made = by_host(host) if host is not None else secret()
        made["metadata"]["annotations"][UID_ANNOTATION] = f"uid-{name}"
        self.secrets.objects[gateway_secret_name(name)] = made
        self.table.secret(gateway_secret_name(name), self.version)

    def delete(self, name: str) -> None:
        del self.control_planes.objects[name]
        self.table.control_plane(name, self.version)

    @property
    def paths(self) -> list[tuple[str, str]]:
        return [(route.cluster_path, route.key) for route in self.table.routes]


def test_a_change_of_one_makes_one_route_anew() -> None:
    cluster = Cluster()
    for name in ("acme", "globex", "initech"):
        cluster.put(name)
    assert cluster.table.renew().keys() == {"acme", "globex", "initech"}
    cluster.control_planes.decoded.clear()
    cluster.publish("globex")
    (changed,) = cluster.table.renew().items()
    assert changed[0] == "globex"
    assert changed[1] is not None
    assert changed[1].upstream is not None
    assert cluster.control_planes.decoded == ["globex"]
    # What says the same is no change, and Secrets of others are none of its business.
    cluster.put("globex", phase="Ready")
    cluster.table.secret("another", 7)
    assert cluster.table.renew() == {}
    cluster.delete("globex")
    assert cluster.table.renew() == {"globex": None}
    assert cluster.paths == [("acme", "uid-acme"), ("initech", "uid-initech")]


def test_a_path_is_of_the_first_and_then_of_the_next() -> None:
    cluster = Cluster()
    cluster.put("globex", path="shared")
    cluster.table.renew()
    cluster.put("acme", path="shared")
    (first,) = cluster.table.renew().values()
    assert first is not None
    assert first.key == "uid-acme"
    cluster.put("acme", path="own")
    assert {path: route and route.key for path, route in cluster.table.renew().items()} == {
        "shared": "uid-globex",
        "own": "uid-acme",
    }
    assert cluster.paths == [("own", "uid-acme"), ("shared", "uid-globex")]
    # A successor of the same name is another one.
    cluster.put("acme", path="own", uid="uid-2")
    (second,) = cluster.table.renew().values()
    assert second is not None
    assert second.key == "uid-2"


def test_a_host_name_is_of_the_first_and_then_of_the_next() -> None:
    """A host name begins with the clusterPath. So who has the path has the host name too."""
    cluster = Cluster()
    for name, host in (("acme", None), ("globex", b"shared.example.org"), ("initech", b"shared.example.com")):
        cluster.put(name, path="shared")
        cluster.publish(name, host=host)
    cluster.table.renew()
    assert cluster.paths == [("shared", "uid-acme")]
    for gone, expected in (("acme", "shared.example.org"), ("globex", "shared.example.com")):
        cluster.delete(gone)
        (served,) = cluster.table.renew().values()
        assert served is not None
        assert served.host == expected
    # The Secret alone decides whether it is served by its path.
    cluster.publish("initech")
    (served,) = cluster.table.renew().values()
    assert served is not None
    assert (served.key, served.host) == ("uid-initech", "")
    cluster.publish("initech", host=b"another.example.org")
    assert cluster.table.renew() == {"shared": None}
    assert cluster.paths == []


def test_table_progress_is_what_the_routes_were_made_of() -> None:
    cluster = Cluster()
    cluster.version = 11
    cluster.put("acme")
    cluster.publish("acme")
    assert cluster.table.progress == (0, 0)
    cluster.table.renew()
    assert cluster.table.progress == (11, 11)
    cluster.table.secret("another", 9)
    cluster.table.control_plane("globex", 12)
    cluster.table.renew()
    assert cluster.table.progress == (12, 11)
