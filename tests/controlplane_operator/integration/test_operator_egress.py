"""A tenant has its API server connect wherever it can say: nothing arrives, unless the class allows it.

Listeners of the test stand for what must not be reached. The real API server's own words tell the rest.
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
    """Counts its connections, and ends each."""

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
    """A tenant's administrator, and what it is after."""

    name: str
    """Of the control plane, and of its class."""
    client: Client
    near: Listener
    """At loopback, where all of an embedded cluster is: API servers, etcd, kubelets."""
    far: Listener
    """At another address of the machine."""
    targets: dict[str, str]
    """URLs of webhooks, by name."""
    eventually: Callable[..., Any]

    async def attack(self) -> None:
        """Make everything that has an API server connect somewhere."""
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
        # It takes the API server a moment to know the ServiceAccount.
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
        """Tell what the API server says to an object that the webhook of this name is asked about."""
        body = {"metadata": {"name": name, "namespace": "default", "labels": {"target": name}}}
        try:
            await self.client.create(CONFIG_MAPS, body)
        except ProviderError as error:
            return str(error)
        return ""

    async def proxied(self, path: str) -> str:
        """Tell what the API server says to a request that it should pass on."""
        try:
            await self.client.request("GET", path)
        except ProviderError as error:
            return str(error)
        return ""

    async def aggregated(self) -> str:
        """Tell why the aggregated API is not available."""
        found = await self.client.get(API_SERVICES, "v1.attack.example.com")
        return "; ".join(item.get("message", "") for item in found.get("status", {}).get("conditions", []))

    def paths(self) -> list[str]:
        """Return requests for what a proxy would give: a kubelet, a pod and its log, a Service."""
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
        made = Tenant(name, client, near, reached, targets, eventually)
        await made.attack()
        yield made


async def test_an_api_server_connects_to_nothing_but_its_etcd(tenant: Tenant) -> None:
    for name in tenant.targets:
        # It takes the API server a moment to ask a new webhook.
        assert CLOSED in await tenant.eventually(lambda name=name: tenant.hooked(name)), name
    for path in tenant.paths():
        said = await tenant.proxied(path)
        assert CLOSED in said, (path, said)
    await tenant.eventually(tenant.aggregated, lambda said: CLOSED in said)
    assert (tenant.near.connections, tenant.far.connections) == (0, 0)


async def test_it_connects_to_what_its_class_allows_and_to_nothing_else(field: Field, tenant: Tenant) -> None:
    async def allow(*destinations: dict[str, Any]) -> None:
        patch = {"spec": {"allowedDestinations": list(destinations)}}
        await field.client.patch(CONTROL_PLANE_CLASSES, tenant.name, patch)

    await allow({"cidr": f"{tenant.far.host}/32", "ports": [tenant.far.port]})

    def reached(said: str) -> bool:
        # The API server is started again, with a proxy beside it, and its own connections end by a reset meanwhile.
        return tenant.far.connections >= 1 and ("EOF" in said or "reset" in said)

    await tenant.eventually(lambda: tenant.hooked("far"), reached, timeout=120.0)
    for path in tenant.paths():
        before = tenant.far.connections
        assert REFUSED not in await tenant.proxied(path)
        assert tenant.far.connections > before, path
    for name in tenant.targets.keys() - {"far"}:
        said = await tenant.hooked(name)
        assert REFUSED in said, (name, said)
    await tenant.eventually(tenant.aggregated, lambda said: REFUSED in said)
    assert tenant.near.connections == 0

    await allow()
    await tenant.eventually(lambda: tenant.hooked("far"), lambda said: CLOSED in said, timeout=120.0)
    seen = tenant.far.connections
    for path in tenant.paths():
        assert CLOSED in await tenant.proxied(path)
    assert (tenant.near.connections, tenant.far.connections) == (0, seen)
    directory = field.state / egress_name(tenant.name)
    assert not directory.exists()
