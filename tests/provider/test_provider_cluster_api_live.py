"""Clusters of Cluster API on a real API server, which also serves as each of these clusters."""

from __future__ import annotations

import base64
import json

import pytest

from kplane.provider import Client, ClusterNotFound, ProviderError, Resource
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.providers.capi import ClusterApiProvider

pytestmark = pytest.mark.integration

CLUSTERS = Resource("cluster.x-k8s.io/v1beta2", "Cluster", "clusters", namespaced=True)
INITIALIZED = {"initialization": {"controlPlaneInitialized": True}}


class Capi:
    """Writes the objects that Cluster API would write."""

    def __init__(self, client, namespace, config, reader, telling):
        self.client, self.namespace, self.config = client, namespace, config
        self.reader, self.telling = reader, telling

    def name(self, name):
        return f"{self.namespace}/{name}"

    async def create(self, name, **metadata):
        body = {"metadata": {"name": name, **metadata}, "spec": {}}
        await self.client.create(CLUSTERS, body, namespace=self.namespace)

    async def status(self, name, status):
        await self.client.patch(CLUSTERS, name, {"status": status}, namespace=self.namespace, subresource="status")

    async def kubeconfig(self, name, *, server=None, user=None):
        document = (self.config.with_server(server) if server else self.config).to_kubeconfig()
        if user:
            document["users"][0]["user"] = user
        data = {"value": base64.b64encode(json.dumps(document).encode()).decode()}
        labels = {"cluster.x-k8s.io/cluster-name": name}
        metadata = {"name": f"{name}-kubeconfig", "namespace": self.namespace, "labels": labels}
        body = {"metadata": metadata, "data": data}
        await self.client.apply(SECRETS, body, force=True)

    def run(self, **options):
        return self.telling(ClusterApiProvider(self.reader, namespace=self.namespace, **options))


@pytest.fixture
async def capi(client, namespace, install, service_account, telling):
    await install(CLUSTERS, "v1beta1")
    config = await service_account([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}])
    reading = [
        {"apiGroups": ["cluster.x-k8s.io"], "resources": ["clusters"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch", "get"]},
    ]
    # The identity has exactly the permissions that the documentation lists.
    async with Client(await service_account(reading), field_manager="kplane") as reader:
        yield Capi(client, namespace, config, reader, telling)


async def test_cluster_is_engaged_when_initialized_until_deletion(capi, eventually, caplog):
    """Criterion 50: not initialised is not engaged, an equal kubeconfig is the same instance, deletion disengages."""
    client, name = capi.client, capi.name("a")
    provider = ClusterApiProvider(capi.reader, namespace=capi.namespace)
    assert not provider.has_synced()
    async with capi.telling(provider) as fleet:
        await eventually(provider.has_synced)
        await capi.kubeconfig("a")
        await capi.create("a", finalizers=["test.example/held"])
        await capi.status("a", {"initialization": {"controlPlaneInitialized": False}})
        await capi.create("no-secret")
        await capi.status("no-secret", INITIALIZED)
        await eventually(lambda: caplog.text, lambda text: "no-secret-kubeconfig is missing" in text)
        assert fleet.names() == []

        await capi.status("a", INITIALIZED)
        await eventually(lambda: fleet.get(name))
        cluster, (engagement,) = fleet.get(name), fleet.engagements()
        await client.create(CONFIG_MAPS, {"metadata": {"name": "there"}}, namespace=capi.namespace)
        found = await cluster.client.list(CONFIG_MAPS, namespace=capi.namespace)
        assert "there" in [item["metadata"]["name"] for item in found.items]

        # Events without a change and an invalid kubeconfig keep the engagement.
        touched = {"metadata": {"annotations": {"touched": "yes"}}}
        await client.patch(CLUSTERS, "a", touched, namespace=capi.namespace)
        await client.patch(SECRETS, "a-kubeconfig", touched, namespace=capi.namespace)
        await capi.status("a", {"initialization": {"controlPlaneInitialized": None}})
        await capi.kubeconfig("a", user={"exec": {"command": "sh", "apiVersion": "client.authentication.k8s.io/v1"}})
        await eventually(lambda: caplog.text, lambda text: "exec credential plugin that may not run here" in text)
        await capi.kubeconfig("a")
        await capi.create("b")
        await capi.kubeconfig("b")
        await capi.status("b", INITIALIZED)
        await eventually(lambda: fleet.get(capi.name("b")))
        assert fleet.get(name) is cluster

        await client.delete(CLUSTERS, "a", namespace=capi.namespace)
        await eventually(lambda: engagement.closed)
        with pytest.raises(ClusterNotFound):
            fleet.get(name)
        await client.patch(CLUSTERS, "a", {"metadata": {"finalizers": None}}, namespace=capi.namespace)
        await client.delete(CLUSTERS, "b", namespace=capi.namespace)
        await eventually(fleet.names, lambda names: names == [])


async def test_rotated_secret_keeps_engagement_and_new_server_replaces_it(capi, eventually):
    """Criterion 50: a renewed token updates the engagement and its client. Only a new server replaces it."""
    name = capi.name("a")
    await capi.create("a")
    await capi.status("a", INITIALIZED)
    await capi.kubeconfig("a")
    async with capi.run() as fleet:
        await eventually(lambda: fleet.get(name))
        client, (engagement,) = fleet.get(name).client, fleet.engagements()
        await capi.kubeconfig("a", user={"token": "renewed"})
        await eventually(lambda: fleet.get(name).config.token, lambda token: token == "renewed")
        assert fleet.get(name).client is client
        assert client.config.token == "renewed"
        assert not engagement.closed
        await capi.kubeconfig("a", server="https://127.0.0.1:1")
        await eventually(lambda: fleet.get(name).config.server, lambda server: server == "https://127.0.0.1:1")
        assert engagement.closed


@pytest.mark.parametrize(
    "status", [{"controlPlaneReady": True}, {"conditions": [{"type": "ControlPlaneInitialized", "status": "True"}]}]
)
async def test_older_cluster_versions_are_ready_by_their_own_fields(capi, eventually, status):
    await capi.create("a")
    await capi.kubeconfig("a")
    async with capi.run(version="v1beta1") as fleet:
        await capi.status("a", status)
        await eventually(lambda: fleet.get(capi.name("a")))


async def test_caller_decides_readiness_and_labels(capi, eventually):
    """Criterion 48, for Cluster API: the caller may decide which clusters are ready."""
    for name in ("a", "b", "c"):
        await capi.create(name, labels={"infrastructure": "yes" if name != "c" else "no"})
        await capi.kubeconfig(name)
    await capi.status("a", INITIALIZED)
    await capi.status("b", {"phase": "Provisioned"})
    await capi.status("c", {"phase": "Provisioned"})

    def provisioned(found):
        return (found.get("status") or {}).get("phase") == "Provisioned"

    async with capi.run(ready=provisioned, label_selector="infrastructure=yes") as fleet:
        await eventually(fleet.names, lambda names: names == [capi.name("b")])


async def test_api_version_that_is_not_served_is_refused(client):
    with pytest.raises(ProviderError, match="'v1alpha4' is not supported"):
        ClusterApiProvider(client, version="v1alpha4")
