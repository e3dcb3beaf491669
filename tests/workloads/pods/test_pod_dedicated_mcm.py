"""The mcm of a dedicated registration as a pod, which the operator creates and deletes through a StatefulSet."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kplane.api.names import management_namespace
from kplane.components.mcm import McmProgram
from kplane.components.names import apiserver_name, place
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcmReconciler, DedicatedMcms
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Cache
from kplane.provider.client.resources import CLUSTER_ROLES, PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES, STATEFUL_SETS
from kplane.workloads import Component, Scheduling
from kplane.workloads.pods import Image, PodRuntime, PodSettings
from tests.controlplane_operator.informing import list_again, store_writes

pytestmark = pytest.mark.integration

SETTINGS = PodSettings(
    images={name: Image(f"registry.example/{name}:1") for name in ("mcm", "kube-apiserver")},
    ports={"http": 8081},
)


class Dedicated:
    """A resolved registration, and the reconciler of its mcm."""

    def __init__(self, client, runtime, *, name):
        self.name, self.namespace = name, management_namespace(name)
        events = Events(client)
        self.client, self.runtime = client, runtime
        stores = Stores()
        self.context = OperatorContext(
            client=client,
            stores=stores,
            triggers=Triggers(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, Cache(client), shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(client, stores=stores, namespace="kplane-system"),
        )
        store_writes(client, stores)
        identities = McmIdentities(client, Cache(client))
        self.reconciler = DedicatedMcmReconciler(
            self.context,
            runtime=runtime,
            mcms=DedicatedMcms(runtime, identities=identities),
            identities=identities,
            program=McmProgram(program="mcm", directories=(Path("/usr/local/bin"),)),
            config=None,
        )

    async def look(self):
        """Reconcile the registration once. Returns the reason of its condition DedicatedReady."""
        await list_again(self.client, self.context.stores.cached())
        await self.reconciler.reconcile(("", self.name))
        status = (await self.client.get(CONTROL_PLANE_REGISTRATIONS, self.name))["status"]
        return next(
            (
                condition["reason"]
                for condition in status.get("conditions", ())
                if condition["type"] == "DedicatedReady"
            ),
            "",
        )

    async def says(self, **status):
        await self.client.patch(CONTROL_PLANE_REGISTRATIONS, self.name, {"status": status}, subresource="status")

    async def names(self, resource):
        return {obj["metadata"]["name"] for obj in (await self.client.list(resource, namespace=self.namespace)).items}


@pytest.fixture
async def dedicated(cluster, request):
    client, name = cluster.client, f"podded-{'mcm' if 'node' in request.function.__name__ else 'once'}"
    await cluster.namespace(management_namespace(name), **{"pod-security.kubernetes.io/enforce": "restricted"})
    control_plane = await client.create(CONTROL_PLANES, {"metadata": {"name": name}, "spec": {}})
    spec = {"controlPlaneRef": {"name": name}, "mode": "Dedicated"}
    await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": name}, "spec": spec})
    try:
        async with PodRuntime(client, place=place, settings=SETTINGS) as runtime:
            await runtime.synced()
            registration = Dedicated(client, runtime, name=name)
            await registration.says(ready=True, mode="Dedicated", controlPlaneUID=control_plane["metadata"]["uid"])
            yield registration
    finally:
        await client.delete(CONTROL_PLANE_REGISTRATIONS, name)
        await client.delete(CONTROL_PLANES, name)


async def test_mcm_pod_has_own_account_and_is_deleted_in_mode_shared(cluster, dedicated):
    assert await dedicated.look() == "McmStarting"
    pod = await cluster.pod(dedicated.namespace)
    [name] = await dedicated.names(STATEFUL_SETS)
    assert pod["spec"]["serviceAccountName"] == name
    tokens = [volume for volume in pod["spec"]["volumes"] if "projected" in volume]
    assert len(tokens) == 1
    [container] = pod["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "768Mi"}}
    assert container["args"] == [
        f"--registration={dedicated.name}",
        "--report-status",
        "--state-dir=/var/run/kplane",
        "--programs-dir=/usr/local/bin",
        "--listen=0.0.0.0:8081",
    ]
    await cluster.run_pod(pod)
    await cluster.eventually(dedicated.look, lambda reason: reason == "McmRunning")

    # The instance ends once its pods are gone, even if its status still has mode Dedicated: no pod can write.
    await dedicated.says(mode="Shared", instance={"mode": "Dedicated"})
    await cluster.eventually(dedicated.look, lambda reason: not reason, timeout=120.0)
    status = (await dedicated.client.get(CONTROL_PLANE_REGISTRATIONS, dedicated.name))["status"]
    assert "instance" not in status
    assert [condition["reason"] for condition in status["conditions"]] == ["Ended"]
    remaining = [
        await dedicated.names(resource) for resource in (STATEFUL_SETS, SERVICES, PODS, SECRETS, SERVICE_ACCOUNTS)
    ]
    assert set().union(*remaining) <= {"default"}
    roles = await dedicated.client.list(
        CLUSTER_ROLES, label_selector=f"controlplane.kplane.dev/registration={dedicated.name}"
    )
    assert roles.items == []


async def test_mcm_keeps_its_node_until_api_server_has_a_new_node(cluster, dedicated):
    client, runtime = dedicated.client, dedicated.runtime
    api_server = Component(name=apiserver_name(dedicated.name), program="kube-apiserver", args=())
    await runtime.apply(api_server)
    await cluster.run_pod(await cluster.pod(dedicated.namespace))
    await cluster.eventually(lambda: runtime.placed(api_server.name, None))
    [first] = [pod["metadata"]["name"] for pod in await cluster.pods(dedicated.namespace)]
    await dedicated.look()
    pod = await cluster.pod(dedicated.namespace, but=(first,))
    await cluster.run_pod(pod)
    await cluster.eventually(dedicated.look, lambda reason: reason == "McmRunning")

    spec = {"pods": {"nodeSelector": {"disk": "sdd"}}}
    await client.create(CONTROL_PLANE_CLASSES, {"metadata": {"name": dedicated.name}, "spec": spec})
    try:
        await client.patch(CONTROL_PLANES, dedicated.name, {"spec": {"classRef": {"name": dedicated.name}}})
        await dedicated.look()
        scheduling = Scheduling(node_selector={"disk": "sdd"})
        await runtime.apply(dataclasses.replace(api_server, scheduling=scheduling))
        await dedicated.look()
        next_pod = await cluster.pod(dedicated.namespace, but=(first, pod["metadata"]["name"]))
        [mcm] = (await client.list(STATEFUL_SETS, namespace=dedicated.namespace)).items
        assert mcm["metadata"]["generation"] == 1
        await cluster.run_pod(next_pod)
        await cluster.eventually(lambda: runtime.placed(api_server.name, scheduling))
        await dedicated.look()
        [mcm] = (await client.list(STATEFUL_SETS, namespace=dedicated.namespace)).items
        assert mcm["spec"]["template"]["spec"]["nodeSelector"] == {"disk": "sdd"}
    finally:
        await client.delete(CONTROL_PLANE_CLASSES, dedicated.name)
