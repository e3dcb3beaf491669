"""Routes of control planes: the status and Secret that the gateway needs to serve a control plane."""

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
    upstream = route("acme").upstream
    assert upstream is not None
    assert upstream.front_proxy is not None
    values = {
        "server": b"https://127.0.0.1:6443",
        "ca.crt": upstream.ca,
        "client-ca.crt": upstream.front_proxy.client_ca,
        "sa.pub": b"".join(upstream.trust.keys),
        "tls.crt": upstream.front_proxy.certificate.certificate,
        "tls.key": upstream.front_proxy.certificate.key,
    } | {name.replace("_", "."): value for name, value in changes.items()}
    data = {name: base64.b64encode(value).decode() for name, value in values.items() if value is not None}
    return {"metadata": {"name": "controlplane-acme", "annotations": {UID_ANNOTATION: uid}}, "data": data}


def by_host(host: bytes = b"acme.example.org", server: bytes | None = b"https://127.0.0.1:6443") -> dict[str, Any]:
    others = dict.fromkeys(("ca_crt", "client-ca.crt", "sa_pub", "tls_crt", "tls_key"), None)
    return secret(host=host, server=server, **others)


def test_route_of_control_plane_with_secret_has_uid_as_key() -> None:
    acme_route = route_of(control_plane(), secret())
    assert acme_route is not None
    assert (acme_route.key, acme_route.cluster_path) == (UID, "acme")
    assert acme_route.upstream is not None
    assert (acme_route.upstream.host, acme_route.upstream.port) == ("127.0.0.1", 6443)


@pytest.mark.parametrize("given", [secret(), by_host()])
@pytest.mark.parametrize("path", ["acme", None])
def test_route_of_unpublished_control_plane_is_asleep(given: dict[str, Any], path: str | None) -> None:
    """The Secret exists before the status, which may report a sleeping control plane. No wake-up is requested."""
    acme_route = route_of(control_plane(status={"phase": "Provisioning", "endpoint": None, "clusterPath": path}), given)
    assert acme_route is not None
    assert (acme_route.cluster_path, acme_route.upstream is not None) == ("acme", True)
    assert acme_route.asleep is not None
    assert acme_route.asleep.is_asked(datetime.now(UTC))


def test_route_of_unpublished_control_plane_has_path_of_spec() -> None:
    manifest = control_plane(virtual={"clusterPath": "team"}, status={"endpoint": None, "clusterPath": None})
    acme_route = route_of(manifest, secret())
    assert acme_route is not None
    assert acme_route.cluster_path == "team"
    assert route_of(manifest, None) is None


def test_route_of_control_plane_without_secret_has_no_upstream() -> None:
    internal_endpoint = {"type": "Internal", "url": "https://10.0.0.1:6443"}
    gateway_endpoint = {"type": "External", "url": "https://api.example.org/clusters/acme/control-plane"}
    acme_route = route_of(control_plane(status={"endpoints": [internal_endpoint, gateway_endpoint]}), None)
    assert acme_route is not None
    assert acme_route.upstream is None


def test_route_of_dedicated_control_plane_needs_gateway_endpoint() -> None:
    gateway_endpoint = {"type": "External", "url": "https://api.example.org/clusters/acme/control-plane"}
    acme_route = route_of(
        control_plane(mode="Dedicated", status={"clusterPath": None, "endpoints": [gateway_endpoint]}), secret()
    )
    assert acme_route is not None
    assert (acme_route.cluster_path, acme_route.upstream is not None) == ("acme", True)
    other_endpoint = {"type": "External", "url": "https://acme.example.org:6443"}
    assert (
        route_of(control_plane(mode="Dedicated", status={"clusterPath": None, "endpoints": [other_endpoint]}), secret())
        is None
    )


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
def test_route_with_unusable_secret_has_no_upstream(given: Any) -> None:
    acme_route = route_of(control_plane(), given)
    assert acme_route is not None
    assert acme_route.upstream is None
    assert acme_route.why_absent


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
def test_route_of_returns_none_for_invalid_path_or_other_server(given: Any) -> None:
    assert route_of(given, secret()) is None


def test_route_has_limits_of_control_plane_class() -> None:
    acme_route = route_of(control_plane(), secret(limits_json=b'{"class": "small", "requestsPerSecond": 50}'))
    assert acme_route is not None
    assert acme_route.limits == Limits(set_by="ControlPlaneClass small", requests_per_second=50)
    assert not acme_route.full
    unlimited_route = route_of(control_plane(), secret())
    assert unlimited_route is not None
    assert unlimited_route.limits == Limits()


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
def test_route_with_unreadable_limits_has_no_upstream(damaged: bytes) -> None:
    acme_route = route_of(control_plane(), secret(limits_json=damaged))
    assert acme_route is not None
    assert acme_route.upstream is None


@pytest.mark.parametrize(
    ("storage", "full"),
    [
        (None, False),
        ({"bytes": 5}, False),
        ({"bytes": 5, "quotaBytes": 6}, False),
        ({"bytes": 6, "quotaBytes": 6}, True),
    ],
)
def test_route_is_full_when_storage_reaches_quota(storage: Any, full: bool) -> None:
    acme_route = route_of(control_plane(status={"storage": storage}), secret())
    assert acme_route is not None
    assert acme_route.full is full


ELSEWHERE = {"endpoints": [{"type": "External", "url": "https://acme.example.org"}]}


@pytest.mark.parametrize("status", [{}, ELSEWHERE])
def test_route_has_host_name_of_secret(status: dict[str, Any]) -> None:
    acme_route = route_of(control_plane(status=status), by_host())
    assert acme_route is not None
    assert (acme_route.key, acme_route.cluster_path, acme_route.host, acme_route.domain) == (
        UID,
        "acme",
        "acme.example.org",
        "example.org",
    )
    assert acme_route.upstream is not None
    assert (acme_route.upstream.host, acme_route.upstream.port, acme_route.upstream.ca) == ("127.0.0.1", 6443, b"")
    assert acme_route.upstream.front_proxy is None


def test_route_of_dedicated_control_plane_has_host_name_of_secret() -> None:
    manifest = control_plane(mode="Dedicated", status={**ELSEWHERE, "clusterPath": None})
    acme_route = route_of(manifest, by_host())
    assert acme_route is not None
    assert (acme_route.cluster_path, acme_route.host) == ("acme", "acme.example.org")


def test_route_by_host_name_ignores_hold() -> None:
    """The gateway cannot read requests inside TLS, and so cannot detect changes in flight."""
    manifest = by_host()
    manifest["metadata"]["annotations"][WRITES_HELD_UNTIL_ANNOTATION] = "2026-11-23T12:00:00Z"
    acme_route = route_of(control_plane(), manifest)
    assert acme_route is not None
    assert acme_route.held is None


@pytest.mark.parametrize(
    "given",
    [
        # The name of another control plane, and invalid names.
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
def test_route_of_returns_none_for_damaged_host_name_secret(given: dict[str, Any]) -> None:
    assert route_of(control_plane(status=ELSEWHERE), given) is None


def test_route_by_path_requires_ca_of_api_server() -> None:
    with pytest.raises(RouteInvalid, match="not served by path"):
        Route(key=UID, cluster_path="acme", upstream=Upstream.behind("https://127.0.0.1:6443"))


SINCE = datetime(2026, 11, 23, 12, 0, 0, 250_000, tzinfo=UTC)


def sleeper(requested: str | None = None, **hibernation: Any) -> dict[str, Any]:
    manifest = control_plane(status={"hibernation": {"since": "2026-11-23T12:00:00.250000Z"} | hibernation})
    if requested is not None:
        manifest["metadata"]["annotations"] = {WAKE_REQUESTED_ANNOTATION: requested}
    return manifest


def test_route_of_sleeping_control_plane_has_upstream_and_sleep() -> None:
    acme_route = route_of(sleeper("2026-11-23T13:00:00+01:00"), secret())
    assert acme_route is not None
    assert acme_route.upstream is not None
    assert acme_route.upstream.trust.keys
    assert acme_route.asleep is not None
    assert (acme_route.asleep.name, acme_route.asleep.since) == ("acme", SINCE)
    assert acme_route.asleep.requested == datetime(2026, 11, 23, 12, tzinfo=UTC)
    awake_route = route_of(control_plane(), secret())
    assert awake_route is not None
    assert awake_route.asleep is None


def test_route_is_crowded_when_control_plane_waits_for_room() -> None:
    for reason, crowded in (("WaitsForRoom", True), ("Hibernated", False)):
        manifest = sleeper()
        manifest["status"]["conditions"] = [{"type": "Hibernated", "status": "True", "reason": reason}]
        acme_route = route_of(manifest, secret())
        assert acme_route is not None
        assert acme_route.asleep is not None
        assert acme_route.asleep.crowded is crowded


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
def test_route_has_cause_when_sleeping_control_plane_is_not_ready(
    phase: str, ready: dict[str, str] | None, failed: bool, problem: str
) -> None:
    manifest = sleeper()
    manifest["status"]["phase"] = phase
    manifest["status"]["conditions"] = [{"type": "Ready", "reason": "x"} | ready] if ready is not None else []
    acme_route = route_of(manifest, secret())
    assert acme_route is not None
    assert acme_route.asleep is not None
    assert (acme_route.asleep.failed, acme_route.asleep.problem) == (failed, problem)


@pytest.mark.parametrize("requested", [None, "", "soon", "2026-11-23T13:00:00", "2026-11-23"])
def test_route_ignores_invalid_time_of_wake_request(requested: str | None) -> None:
    acme_route = route_of(sleeper(requested), secret())
    assert acme_route is not None
    assert acme_route.asleep is not None
    assert acme_route.asleep.requested is None


@pytest.mark.parametrize(
    ("entry", "digests"),
    [(None, None), (b'{"salt":"00","accounts":["0a"]}', {b"\n"}), (b"damage", None)],
    ids=["absent", "present", "damaged"],
)
def test_route_has_service_accounts_of_secret(entry: bytes | None, digests: set[bytes] | None) -> None:
    acme_route = route_of(control_plane(), secret(accounts_json=entry))
    assert acme_route is not None
    assert acme_route.upstream is not None
    accounts = acme_route.upstream.trust.accounts
    assert (accounts.digests if accounts is not None else None) == digests


def test_route_of_sleeping_control_plane_needs_secret() -> None:
    acme_route = route_of(sleeper(), None)
    assert acme_route is not None
    assert (acme_route.upstream, acme_route.asleep) == (None, None)


class Known:
    """Fake informer with its objects, and the names that were decoded."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.decoded: list[str] = []

    def get(self, name: str, *, namespace: str | None = None) -> dict[str, Any] | None:
        self.decoded.append(name)
        return self.objects.get(name)


class Cluster:
    """Control planes, their Secrets, and a route table that follows both."""

    def __init__(self) -> None:
        self.control_planes, self.secrets = Known(), Known()
        informers = cast("tuple[Informer, Informer]", (self.control_planes, self.secrets))
        self.table = RouteTable(*informers, namespace="kplane-gateway")
        self.version = 1

    def put(self, name: str, *, path: str | None = None, uid: str | None = None, **status: Any) -> None:
        manifest = control_plane(status={"clusterPath": path or name} | status)
        manifest["metadata"] = {"name": name, "uid": uid or f"uid-{name}"}
        self.control_planes.objects[name] = manifest
        self.table.control_plane(name, self.version)

    def publish(self, name: str, *, host: bytes | None = None) -> None:
        manifest = by_host(host) if host is not None else secret()
        manifest["metadata"]["annotations"][UID_ANNOTATION] = f"uid-{name}"
        self.secrets.objects[gateway_secret_name(name)] = manifest
        self.table.secret(gateway_secret_name(name), self.version)

    def delete(self, name: str) -> None:
        del self.control_planes.objects[name]
        self.table.control_plane(name, self.version)

    @property
    def paths(self) -> list[tuple[str, str]]:
        return [(route.cluster_path, route.key) for route in self.table.routes]


def test_table_renews_only_route_of_changed_control_plane() -> None:
    cluster = Cluster()
    for name in ("acme", "globex", "initech"):
        cluster.put(name)
    assert cluster.table.renew().keys() == {"acme", "globex", "initech"}
    cluster.control_planes.decoded.clear()
    cluster.publish("globex")
    (change,) = cluster.table.renew().items()
    assert change[0] == "globex"
    assert change[1] is not None
    assert change[1].upstream is not None
    assert cluster.control_planes.decoded == ["globex"]
    # An equal route is no change, and the table ignores Secrets of unknown control planes.
    cluster.put("globex", phase="Ready")
    cluster.table.secret("another", 7)
    assert cluster.table.renew() == {}
    cluster.delete("globex")
    assert cluster.table.renew() == {"globex": None}
    assert cluster.paths == [("acme", "uid-acme"), ("initech", "uid-initech")]


def test_table_gives_shared_path_to_first_control_plane_by_name() -> None:
    cluster = Cluster()
    cluster.put("globex", path="shared")
    cluster.table.renew()
    cluster.put("acme", path="shared")
    (shared_route,) = cluster.table.renew().values()
    assert shared_route is not None
    assert shared_route.key == "uid-acme"
    cluster.put("acme", path="own")
    assert {path: route and route.key for path, route in cluster.table.renew().items()} == {
        "shared": "uid-globex",
        "own": "uid-acme",
    }
    assert cluster.paths == [("own", "uid-acme"), ("shared", "uid-globex")]
    # A successor of the same name has a new uid, and so a new route.
    cluster.put("acme", path="own", uid="uid-2")
    (successor,) = cluster.table.renew().values()
    assert successor is not None
    assert successor.key == "uid-2"


def test_table_gives_host_name_to_control_plane_with_path() -> None:
    """A host name begins with the clusterPath, so the control plane with the path has the host name too."""
    cluster = Cluster()
    for name, host in (("acme", None), ("globex", b"shared.example.org"), ("initech", b"shared.example.com")):
        cluster.put(name, path="shared")
        cluster.publish(name, host=host)
    cluster.table.renew()
    assert cluster.paths == [("shared", "uid-acme")]
    for former_holder, expected in (("acme", "shared.example.org"), ("globex", "shared.example.com")):
        cluster.delete(former_holder)
        (shared_route,) = cluster.table.renew().values()
        assert shared_route is not None
        assert shared_route.host == expected
    # Only the Secret decides between a route by path and a route by host name.
    cluster.publish("initech")
    (shared_route,) = cluster.table.renew().values()
    assert shared_route is not None
    assert (shared_route.key, shared_route.host) == ("uid-initech", "")
    cluster.publish("initech", host=b"another.example.org")
    assert cluster.table.renew() == {"shared": None}
    assert cluster.paths == []


def test_table_progress_is_version_of_renewed_routes() -> None:
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
