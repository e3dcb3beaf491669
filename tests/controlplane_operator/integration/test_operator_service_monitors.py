"""Prometheus has access only to the metrics of the API servers of control planes."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.config import OperatorConfig
from kplane.controlplane_operator.controlplanes.service_monitors import SERVICE_MONITORS, ServiceMonitorSettings
from kplane.pki.entries import entries, read_pair
from kplane.pki.primitives import issue_client, user_of
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CUSTOM_RESOURCE_DEFINITIONS,
    SECRETS,
)
from tests.controlplane_operator.controller_manager import running_controllers
from tests.monitoring import crds

pytestmark = pytest.mark.integration

NAME, NAMESPACE = "measured", "kplane-cp-measured"
SECRET, MONITOR = "control-plane-metrics", "kube-apiserver"
SETTINGS = ServiceMonitorSettings(job="kplane-apiserver", interval="30s", labels={"release": "prometheus"})
ALLOWED = ("/metrics", "/metrics/slis", "/livez", "/version")
REFUSED = (
    "/api/v1/namespaces",
    "/api/v1/secrets",
    "/api/v1/nodes",
    "/api/v1/namespaces/kube-system/configmaps",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/debug/pprof/",
    "/logs/",
)


@pytest.fixture
async def monitoring(api_server: Any, eventually: Callable[..., Any]) -> AsyncIterator[None]:
    """Install the CRD of ServiceMonitor, and grant the operator the chart's permission to write ServiceMonitors."""
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        for crd in crds():
            await client.apply(CUSTOM_RESOURCE_DEFINITIONS, crd, force=True)
        await eventually(lambda: client.list(SERVICE_MONITORS), lambda found: found.items == [])
        metadata = {"name": "test-service-monitors"}
        rule = {"apiGroups": ["monitoring.coreos.com"], "resources": ["servicemonitors"], "verbs": ["create", "patch"]}
        account = {"kind": "ServiceAccount", "name": "controlplane-operator", "namespace": "kplane-system"}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **metadata}
        await client.apply(CLUSTER_ROLES, {"metadata": metadata, "rules": [rule]}, force=True)
        await client.apply(
            CLUSTER_ROLE_BINDINGS, {"metadata": metadata, "roleRef": role, "subjects": [account]}, force=True
        )
        yield
        await client.delete(CLUSTER_ROLE_BINDINGS, metadata["name"])
        await client.delete(CLUSTER_ROLES, metadata["name"])
        for crd in crds():
            await client.delete(CUSTOM_RESOURCE_DEFINITIONS, crd["metadata"]["name"])


class Prometheus:
    """Client that scrapes the endpoint of a ServiceMonitor with its TLS settings."""

    def __init__(self, client: Client, server: str, directory: Path) -> None:
        self._client = client
        self._server = server
        self._pem = directory / "client.pem"

    async def endpoint(self) -> dict[str, Any]:
        monitor = await self._client.get(SERVICE_MONITORS, MONITOR, namespace=NAMESPACE)
        (entry,) = monitor["spec"]["endpoints"]
        return dict(entry)

    async def secret(self) -> dict[str, bytes]:
        obj = await self._client.get(SECRETS, SECRET, namespace=NAMESPACE)
        return {key: base64.b64decode(value) for key, value in obj["data"].items()}

    async def get(self, *paths: str) -> dict[str, tuple[int, str]]:
        tls, data = (await self.endpoint())["tlsConfig"], await self.secret()
        assert {tls["ca"]["secret"]["name"], tls["cert"]["secret"]["name"], tls["keySecret"]["name"]} == {SECRET}
        context = ssl.create_default_context(cadata=data[tls["ca"]["secret"]["key"]].decode())
        self._pem.write_bytes(data[tls["cert"]["secret"]["key"]] + data[tls["keySecret"]["key"]])
        context.load_cert_chain(self._pem)
        answers = {}
        async with aiohttp.ClientSession(self._server) as session:
            for path in paths:
                async with session.get(path, ssl=context, server_hostname=tls["serverName"]) as answer:
                    answers[path] = answer.status, await answer.text()
        return answers

    async def scrape(self) -> list[str]:
        """Return the series that the relabelings keep."""
        endpoint = await self.endpoint()
        status, text = (await self.get(endpoint["path"]))[endpoint["path"]]
        assert status == 200
        return [line for line in text.splitlines() if line[0] != "#" and is_kept(line, endpoint["metricRelabelings"])]


def is_kept(sample: str, relabelings: list[dict[str, Any]]) -> bool:
    labels = dict(re.findall(r'(\w+)="([^"]*)"', sample)) | {"__name__": re.split(r"[{ ]", sample)[0]}
    for relabeling in relabelings:
        matches = re.fullmatch(
            relabeling["regex"], ";".join(labels.get(name, "") for name in relabeling["sourceLabels"])
        )
        if (matches is not None) is (relabeling["action"] == "drop"):
            return False
    return True


async def test_prometheus_reads_only_metrics_until_monitoring_is_disabled(
    mortal_field: Any,
    monitoring: None,
    binaries: Binaries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    field, operator = mortal_field
    eventually = field.eventually
    monkeypatch.setattr(OperatorConfig, "service_monitors", SETTINGS)
    async with operator():
        await field.create("ControlPlane", NAME, deletionPolicy="Destroy")
        control_plane = await field.becomes("ControlPlane", NAME, "Reconciled")
        prometheus = Prometheus(field.client, control_plane["status"]["endpoint"], tmp_path)
        await eventually(prometheus.endpoint)
        # An API server is ready a second before it has loaded its roles, see `readiness`. Until then /livez fails.
        await eventually(lambda: prometheus.get("/livez"), lambda answers: answers["/livez"][0] == 200)

        answers = await prometheus.get(*ALLOWED, *REFUSED)
        assert {path: status for path, (status, _) in answers.items()} == {
            **dict.fromkeys(ALLOWED, 200),
            **dict.fromkeys(REFUSED, 403),
        }
        series = await prometheus.scrape()
        raw = [line for line in answers["/metrics"][1].splitlines() if line[0] != "#"]
        # 470 of 12,486 series at the first measurement. The operator has since set up the control plane.
        assert 300 < len(series) < 900 < 10_000 < len(raw)

        # An expired certificate stands for a certificate that `kept` finds after two thirds of its lifetime.
        first = await prometheus.secret()
        assert user_of(first["tls.crt"]) == f"kplane:metrics:{control_plane['metadata']['uid']}"
        expired_pair = await expired(field, user=user_of(first["tls.crt"]))
        await field.client.patch(SECRETS, SECRET, {"data": expired_pair}, namespace=NAMESPACE)
        former_certificates = {first["tls.crt"], base64.b64decode(expired_pair["tls.crt"])}
        await eventually(prometheus.secret, lambda secret: secret["tls.crt"] not in former_certificates)
        assert await prometheus.scrape()

        # A user deletes the Secret: the ServiceMonitor needs the new Secret as owner, or it is collected as garbage.
        before = await field.client.get(SECRETS, SECRET, namespace=NAMESPACE)
        await field.client.delete(SECRETS, SECRET, namespace=NAMESPACE)

        async def owner() -> str:
            monitor = await field.client.get(SERVICE_MONITORS, MONITOR, namespace=NAMESPACE)
            (owner,) = monitor["metadata"]["ownerReferences"]
            return str(owner["uid"])

        present = await eventually(owner, lambda uid: uid != before["metadata"]["uid"])
        assert present == (await field.client.get(SECRETS, SECRET, namespace=NAMESPACE))["metadata"]["uid"]

    async def gone() -> bool:
        for resource, name in ((SECRETS, SECRET), (SERVICE_MONITORS, MONITOR)):
            try:
                await field.client.get(resource, name, namespace=NAMESPACE)
            except NotFound:
                continue
            return False
        return True

    monkeypatch.setattr(OperatorConfig, "service_monitors", None)
    collector = "--controllers=garbage-collector-controller"
    async with (
        operator(),
        running_controllers(field.client.config, collector, binaries=binaries, directory=tmp_path),
    ):
        await eventually(gone, timeout=120.0)
        assert await field.reason("ControlPlane", NAME) == "Reconciled"


async def expired(field: Any, *, user: str) -> dict[str, str]:
    """Return an expired client certificate of the control plane's CA and its key, as data of a Secret."""
    authorities = await field.client.get(SECRETS, "control-plane-authorities", namespace=NAMESPACE)
    data = {key: base64.b64decode(value) for key, value in authorities["data"].items()}
    pair = issue_client(read_pair(data, "client-ca"), user=user, groups=["system:monitoring"], lifetime=timedelta())
    return {key: base64.b64encode(content).decode() for key, content in entries("tls", pair).items()}
