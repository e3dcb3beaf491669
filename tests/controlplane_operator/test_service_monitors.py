"""The ServiceMonitor of an API server, and a cluster that refuses the ServiceMonitor."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from kplane.api import ControlPlane
from kplane.controlplane_operator.backends.base import Provision
from kplane.controlplane_operator.controlplanes.service_monitors import ServiceMonitors, ServiceMonitorSettings
from kplane.controlplane_operator.endpoints.addresses import Addresses
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.watch.stores import Stores
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.entries import data_of
from kplane.pki.primitives import issued_by
from kplane.provider import ClusterConfig, NotFound, Resource
from kplane.provider.client.resources import SECRETS
from kplane.provider.errors import ServerError

URL = "https://kube-apiserver.kplane-cp-acme.svc:6443"
SETTINGS = ServiceMonitorSettings(job="kplane-apiserver", interval="30s", labels={"release": "prometheus"})
ACME = ControlPlane.model_validate({"metadata": {"name": "acme", "uid": "1"}, "spec": {}})
KEY = "kplane-cp-acme", "control-plane-metrics"


class Cluster:
    """Fake cluster: records created, applied and deleted objects, and stores its Secrets."""

    field_manager = "kplane"

    def __init__(self) -> None:
        self.stores = Stores()
        self.applied: list[tuple[str, dict[str, Any]]] = []
        self.refuses: Exception | None = None
        self.deleted: list[str] = []

    async def apply(self, resource: Resource, body: dict[str, Any], **_: Any) -> dict[str, Any]:
        if resource != SECRETS and self.refuses is not None:
            raise self.refuses
        self.applied.append((resource.kind, body))
        metadata = {**body["metadata"], "uid": f"uid-{len(self.applied)}", "resourceVersion": str(len(self.applied))}
        stored = {**body, "metadata": metadata}
        if resource == SECRETS:
            self.stores.secrets.apply(stored)
        return stored

    async def create(self, resource: Resource, body: dict[str, Any]) -> dict[str, Any]:
        return await self.apply(resource, body)

    async def request(self, method: str, path: str) -> dict[str, Any]:
        assert method == "GET"
        return next(body for _, body in reversed(self.applied) if path.endswith(f"/{body['metadata']['name']}")) | {
            "metadata": {"resourceVersion": str(len(self.applied))}
        }

    async def patch(self, resource: Resource, name: str, body: dict[str, Any], *, namespace: str) -> dict[str, Any]:
        metadata = {**body["metadata"], "name": name, "namespace": namespace}
        return await self.apply(resource, {**body, "metadata": metadata})

    async def delete(self, _: Resource, name: str, *, namespace: str) -> None:
        self.deleted.append(f"{namespace}/{name}")

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.applied]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def context(cluster: Cluster) -> Any:
    return SimpleNamespace(client=cluster, stores=cluster.stores, events=Mock(Events))


def provision(authorities: TenantAuthorities | None) -> Provision:
    return Provision(Addresses(URL, URL, URL), administrator=ClusterConfig(URL), authorities=authorities)


async def test_ensure_creates_monitor_owned_by_secret_with_own_ca(context: Any, cluster: Cluster) -> None:
    monitors = ServiceMonitors(context, settings=SETTINGS)
    acme_provision = provision(TenantAuthorities.create("acme"))
    for _ in range(2):
        await monitors.ensure(ACME, provision=acme_provision)
    (_, secret), (_, monitor) = cluster.applied
    assert acme_provision.authorities is not None
    data = data_of(secret)
    assert data.keys() == {"tls.crt", "tls.key", "ca.crt"}
    assert data["ca.crt"] == acme_provision.authorities.serving_trust
    assert issued_by(data["tls.crt"], authority=acme_provision.authorities.client)
    metadata, spec = monitor["metadata"], monitor["spec"]
    assert (metadata["namespace"], metadata["labels"]) == ("kplane-cp-acme", {"release": "prometheus"})
    assert [(owner["kind"], owner["name"], owner["uid"]) for owner in metadata["ownerReferences"]] == [
        ("Secret", "control-plane-metrics", "uid-1")
    ]
    assert spec["selector"] == {"matchLabels": {"controlplane.kplane.dev/component": "apiserver-acme"}}
    (endpoint,) = spec["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == "kube-apiserver.kplane-cp-acme.svc"
    assert endpoint["honorLabels"] is False
    assert {relabeling["targetLabel"]: relabeling["replacement"] for relabeling in endpoint["relabelings"]} == {
        "job": "kplane-apiserver",
        "control_plane": "acme",
    }
    # The limit bounds the series that a tenant can cause.
    assert spec["sampleLimit"] == 10_000


async def test_ensure_issues_certificate_for_each_ca_and_control_plane(context: Any) -> None:
    monitors, certificates = ServiceMonitors(context, settings=SETTINGS), []
    authorities = TenantAuthorities.create("acme")
    successor = ACME.model_copy(update={"metadata": ACME.metadata.model_copy(update={"uid": "2"})})
    exchanged = replace(authorities, client=TenantAuthorities.create("acme").client)
    for control_plane, issuer in ((ACME, authorities), (successor, authorities), (successor, exchanged)):
        await monitors.ensure(control_plane, provision=provision(issuer))
        certificates.append(data_of(context.stores.secrets.get(KEY))["tls.crt"])
    assert len(set(certificates)) == len(certificates)


async def test_ensure_posts_event_without_crd_and_retries_in_next_pass(context: Any, cluster: Cluster) -> None:
    monitors, acme_provision = ServiceMonitors(context, settings=SETTINGS), provision(TenantAuthorities.create("acme"))
    cluster.refuses = NotFound(404, "NotFound", "the server could not find the requested resource")
    await monitors.ensure(ACME, provision=acme_provision)
    event = context.events.record.call_args.kwargs
    assert (event["reason"], event["warning"]) == ("MetricsNotScraped", True)
    assert event["message"].endswith("install the CRDs of the Prometheus Operator")
    cluster.refuses = ServerError(500, "InternalError", "not now")
    await monitors.ensure(ACME, provision=acme_provision)
    assert context.events.record.call_args.kwargs["message"].endswith("not now")
    cluster.refuses = None
    await monitors.ensure(ACME, provision=acme_provision)
    assert cluster.kinds() == ["Secret", "ServiceMonitor"]


async def test_ensure_creates_no_object_without_authorities(context: Any, cluster: Cluster) -> None:
    monitors = ServiceMonitors(context, settings=SETTINGS)
    await monitors.ensure(ACME, provision=None)
    await monitors.ensure(ACME, provision=provision(None))
    assert cluster.applied == []


async def test_ensure_without_settings_deletes_only_own_secret(context: Any, cluster: Cluster) -> None:
    await ServiceMonitors(context, settings=SETTINGS).ensure(
        ACME, provision=provision(TenantAuthorities.create("acme"))
    )
    off = ServiceMonitors(context, settings=None)
    await off.ensure(
        ACME.model_copy(update={"metadata": ACME.metadata.model_copy(update={"uid": "2"})}), provision=None
    )
    assert cluster.deleted == []
    await off.ensure(ACME, provision=None)
    assert cluster.deleted == ["kplane-cp-acme/control-plane-metrics"]
