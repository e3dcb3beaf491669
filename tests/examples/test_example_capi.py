"""Example of Cluster API: its program with a real API server that has the nodes of two Clusters."""

from __future__ import annotations

import base64
import json
import uuid

import pytest

from kplane.provider import Client, ClusterConfig, Resource
from kplane.provider.client.resources import NAMESPACES, NODES, SECRETS
from tests.custom_kinds import install

pytestmark = pytest.mark.integration

CLUSTERS = Resource("cluster.x-k8s.io/v1beta2", "Cluster", "clusters", namespaced=True)
NAMES = ("blue", "green")


@pytest.fixture
async def workload(clean_api_server):
    async with Client(ClusterConfig.load(clean_api_server.kubeconfig), field_manager="kplane") as client:
        yield client


@pytest.fixture
async def namespace(client, workload):
    """Namespace with the objects that Cluster API writes for two Clusters without control planes."""
    await install(client, CLUSTERS, "v1beta1")
    namespace = f"capi-{uuid.uuid4().hex[:8]}"
    await client.create(NAMESPACES, {"metadata": {"name": namespace}})
    kubeconfig = base64.b64encode(json.dumps(workload.config.to_kubeconfig()).encode()).decode()
    for name in NAMES:
        metadata = {"name": f"{name}-kubeconfig", "labels": {"cluster.x-k8s.io/cluster-name": name}}
        await client.create(SECRETS, {"metadata": metadata, "data": {"value": kubeconfig}}, namespace=namespace)
        await client.create(CLUSTERS, {"metadata": {"name": name}, "spec": {}}, namespace=namespace)
    yield namespace
    for name in NAMES:
        await client.delete(CLUSTERS, name, namespace=namespace)
    await client.delete(NAMESPACES, namespace)


async def initialized(client, namespace, name):
    status = {"initialization": {"controlPlaneInitialized": True}}
    await client.patch(CLUSTERS, name, {"status": status}, namespace=namespace, subresource="status")


async def join(workload, name, *, ready):
    await workload.create(NODES, {"metadata": {"name": name}})
    await set_ready(workload, name, ready=ready)


async def set_ready(workload, name, *, ready):
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    await workload.patch(NODES, name, {"status": status}, subresource="status")


async def test_clusters_are_annotated_with_their_ready_nodes(
    client, workload, namespace, api_server, running, eventually
):
    async def notes():
        clusters = (await client.list(CLUSTERS, namespace=namespace)).items
        annotations = {cluster["metadata"]["name"]: cluster["metadata"].get("annotations", {}) for cluster in clusters}
        return tuple(annotations[name].get("example.com/nodes-ready") for name in NAMES)

    await initialized(client, namespace, "blue")
    await join(workload, "one", ready=True)
    await join(workload, "two", ready=False)
    async with running("capi/nodes.py", "--kubeconfig", api_server.admin_kubeconfig):
        await eventually(notes, lambda found: found == ("1/2", None))
        await set_ready(workload, "two", ready=True)
        await eventually(notes, lambda found: found == ("2/2", None))
        await initialized(client, namespace, "green")
        await eventually(notes, lambda found: found == ("2/2", "2/2"))
        await workload.delete(NODES, "one")
        await eventually(notes, lambda found: found == ("1/1", "1/1"))
