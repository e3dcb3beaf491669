"""Egress of API servers: a tenant's API server connects only to destinations that its class allows.

Listeners of the test stand for forbidden destinations. For other destinations, the tests check the API server's errors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import pytest
import pytest_asyncio

from kplane.components.names import egress_name
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.provider import Client, ClusterConfig, ProviderError, Resource
from kplane.provider.client.resources import CONFIG_MAPS, PODS, SERVICE_ACCOUNTS, SERVICES

from .conftest import Field
from .machine import own_address

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CLOSED: Final = "allowedDestinations-of-the-class-of-this-control-plane-are-empty"
REFUSED: Final = "403 allowedDestinations of the class of this control plane have no"
WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io/v1",
    "ValidatingWebhookConfiguration",
    "validatingwebhookconfigurations",
    namespaced=False,
)
API_SERVICES: Final = Resource("apiregistration.k8s.io/v1", "APIService", "apiservices", namespaced=False)
NODES: Final = Resource("v1", "Node", "nodes", namespaced=False)
ENDPOINTS: Final = Resource("v1", "Endpoints", "endpoints", namespaced=True)


@dataclass
class Listener:
    """Counts and closes its connections."""

    host: str
    port: int = 0
    connections: int = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[Listener]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            writer.close()

        async with await asyncio.start_server(serve, self.host, 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            yield self


@dataclass(frozen=True)
class Tenant:
    """Administrator of a tenant, and the destinations of its attack."""

    name: str
    """Name of the control plane and of its class."""
    client: Client
    near: Listener
    """Listener at loopback, the address of all components of an embedded cluster: API servers, etcd, kubelets."""
    far: Listener
    """Listener at a non-loopback address of the machine."""
    targets: dict[str, str]
    """URLs of webhooks, by name."""
    eventually: Callable[..., Any]

    async def attack(self) -> None:
        """Create objects of all kinds that cause connections of the API server."""
        hooks = [
            {
                "name": f"{name}.example.com",
                "clientConfig": {"url": url},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["configmaps"]}],
                "objectSelector": {"matchLabels": {"target": name}},
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 30,
            }
            for name, url in self.targets.items()
        ]
        await self.client.create(WEBHOOKS, {"metadata": {"name": "attack"}, "webhooks": hooks})
        kubelet = {"kubeletEndpoint": {"Port": self.far.port}}
        addresses = [{"type": "InternalIP", "address": self.far.host}]
        await self.client.create(NODES, {"metadata": {"name": "fake"}})
        await self.client.patch(
            NODES, "fake", {"status": {"addresses": addresses, "daemonEndpoints": kubelet}}, subresource="status"
        )
        spec = {"nodeName": "fake", "serviceAccountName": "default", "containers": [{"name": "c", "image": "i"}]}
        pod = {"metadata": {"name": "fake", "namespace": "default"}, "spec": spec}
        await self.client.apply(SERVICE_ACCOUNTS, {"metadata": {"name": "default", "namespace": "default"}}, force=True)
        # The API server observes the new ServiceAccount with a delay.
        await self.eventually(lambda: self.client.create(PODS, pod))
        status = {"phase": "Running", "podIP": self.far.host, "podIPs": [{"ip": self.far.host}]}
        await self.client.patch(PODS, "fake", {"status": status}, namespace="default", subresource="status")
        port = {"name": "p", "port": self.far.port, "protocol": "TCP"}
        service = {"metadata": {"name": "fake", "namespace": "default"}, "spec": {"ports": [port]}}
        await self.client.create(SERVICES, service)
        address = {"ip": self.far.host, "targetRef": {"kind": "Pod", "name": "fake", "namespace": "default"}}
        endpoints = {
            "metadata": {"name": "fake", "namespace": "default"},
            "subsets": [{"addresses": [address], "ports": [port]}],
        }
        await self.client.create(ENDPOINTS, endpoints)
        spec = {"type": "ExternalName", "externalName": self.near.host}
        await self.client.create(SERVICES, {"metadata": {"name": "away", "namespace": "default"}, "spec": spec})
        api = {
            "group": "attack.example.com",
            "version": "v1",
            "groupPriorityMinimum": 1,
            "versionPriority": 1,
            "insecureSkipTLSVerify": True,
            "service": {"name": "away", "namespace": "default", "port": self.near.port},
        }
        await self.client.create(API_SERVICES, {"metadata": {"name": "v1.attack.example.com"}, "spec": api})

    async def hooked(self, name: str) -> str:
        """Create an object that matches the webhook of this name, and return the API server's error."""
        body = {"metadata": {"name": name, "namespace": "default", "labels": {"target": name}}}
        try:
            await self.client.create(CONFIG_MAPS, body)
        except ProviderError as error:
            return str(error)
        return ""

    async def proxied(self, path: str) -> str:
        """Send a request for the API server to proxy, and return the API server's error."""
        try:
            await self.client.request("GET", path)
        except ProviderError as error:
            return str(error)
        return ""

    async def aggregated(self) -> str:
        """Return the reasons for which the aggregated API is unavailable."""
        api_service = await self.client.get(API_SERVICES, "v1.attack.example.com")
        return "; ".join(item.get("message", "") for item in api_service.get("status", {}).get("conditions", []))

    def paths(self) -> list[str]:
        """Return paths of proxied requests: to a kubelet, a pod and its log, and a Service."""
        port, namespace = self.far.port, "/api/v1/namespaces/default"
        return [
            "/api/v1/nodes/fake/proxy/pods",
            f"/api/v1/nodes/fake:{port}/proxy/metrics",
            f"{namespace}/pods/fake:{port}/proxy/",
            f"{namespace}/pods/fake/log",
            f"{namespace}/services/fake:p/proxy/",
        ]


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["Virtual", pytest.param("Dedicated", marks=pytest.mark.slow)]
)
async def tenant(request: pytest.FixtureRequest, field: Field, eventually: Callable[..., Any]) -> AsyncIterator[Tenant]:
    far, name = own_address(), request.param.lower()
    await field.create("ControlPlaneClass", name)
    await field.create("ControlPlane", name, mode=request.param, deletionPolicy="Destroy", classRef={"name": name})
    await field.becomes("ControlPlane", name, "Reconciled")
    management = ClusterConfig.load(field.handle.admin_kubeconfig).server
    async with (
        Listener("127.0.0.1").listening() as near,
        Listener(far).listening() as reached,
        Client(await field.tenant(name), field_manager="kplane") as client,
    ):
        targets = {
            "neighbour": f"https://127.0.0.1:{near.port}/",
            "by-name": f"https://localhost:{near.port}/",
            "mapped": f"https://[::ffff:127.0.0.1]:{near.port}/",
            "management": f"{management}/api",
            "metadata": "https://169.254.169.254/latest/meta-data",
            "dns": f"https://{far}:53/",
            "far": f"https://{far}:{reached.port}/",
        }
        attacker = Tenant(name, client, near, reached, targets, eventually)
        await attacker.attack()
        yield attacker


async def test_api_server_without_allowed_destinations_reaches_only_etcd(tenant: Tenant) -> None:
    for name in tenant.targets:
        # The API server observes a new webhook with a delay.
        assert CLOSED in await tenant.eventually(lambda name=name: tenant.hooked(name)), name
    for path in tenant.paths():
        error = await tenant.proxied(path)
        assert CLOSED in error, (path, error)
    await tenant.eventually(tenant.aggregated, lambda said: CLOSED in said)
    assert (tenant.near.connections, tenant.far.connections) == (0, 0)


async def test_api_server_connects_only_to_allowed_destinations(field: Field, tenant: Tenant) -> None:
    async def allow(*destinations: dict[str, Any]) -> None:
        patch = {"spec": {"allowedDestinations": list(destinations)}}
        await field.client.patch(CONTROL_PLANE_CLASSES, tenant.name, patch)

    await allow({"cidr": f"{tenant.far.host}/32", "ports": [tenant.far.port]})

    def reached(said: str) -> bool:
        # The API server restarts with a proxy beside it. Connections to the API server may be reset in the meantime.
        return tenant.far.connections >= 1 and ("EOF" in said or "reset" in said)

    await tenant.eventually(lambda: tenant.hooked("far"), reached, timeout=120.0)
    for path in tenant.paths():
        before = tenant.far.connections
        assert REFUSED not in await tenant.proxied(path)
        assert tenant.far.connections > before, path
    for name in tenant.targets.keys() - {"far"}:
        error = await tenant.hooked(name)
        assert REFUSED in error, (name, error)
    await tenant.eventually(tenant.aggregated, lambda said: REFUSED in said)
    assert tenant.near.connections == 0

    await allow()
    await tenant.eventually(lambda: tenant.hooked("far"), lambda said: CLOSED in said, timeout=120.0)
    connections = tenant.far.connections
    for path in tenant.paths():
        assert CLOSED in await tenant.proxied(path)
    assert (tenant.near.connections, tenant.far.connections) == (0, connections)
    directory = field.state / egress_name(tenant.name)
    assert not directory.exists()
