"""The mcm of one registration as a pod, made and ended by the operator, where StatefulSets have their controller."""

from __future__ import annotations

from pathlib import Path

import pytest

from kplane.controlplane_operator.backends.mcm import McmProgram
from kplane.controlplane_operator.component_names import place
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.controlplane_operator.registrations.dedicated_mcm import DedicatedMcmReconciler, DedicatedMcms
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import LABEL_SELECTORS, Stores
from kplane.provider.client.resources import CLUSTER_ROLES, PODS, SECRETS, SERVICE_ACCOUNTS, SERVICES, STATEFUL_SETS
from kplane.workloads.pods import Image, PodRuntime, PodSettings

pytestmark = pytest.mark.integration

NAME = "podded"
NAMESPACE = f"kplane-cp-{NAME}"
SETTINGS = PodSettings(images={"mcm": Image("registry.example/mcm:1")}, ports={"http": 8081})


class Dedicated:
    """A registration that is resolved, and who looks after its mcm."""

    def __init__(self, client, runtime):
        events = Events(client)
        self.client = client
        stores = Stores()
        self.context = OperatorContext(
            client=client,
            stores=stores,
            queues=Queues(),
            status=StatusWriter(client, events=events),
            events=events,
            access=Access(client, shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(client, stores=stores, namespace="kplane-system"),
        )
        identities = McmIdentities(client)
        self.reconciler = DedicatedMcmReconciler(
            self.context,
            runtime=runtime,
            mcms=DedicatedMcms(runtime, identities=identities),
            identities=identities,
            program=McmProgram(program="mcm", directories=(Path("/usr/local/bin"),)),
            config=None,
        )

    async def look(self):
        """Reconcile once; returns the reason of its condition."""
        for store in self.context.stores.watched():
            found = await self.client.list(store.resource, label_selector=LABEL_SELECTORS.get(store.resource))
            store.replace(found.items, resource_version=found.resource_version)
        await self.reconciler.reconcile(("", NAME))
        status = (await self.client.get(CONTROL_PLANE_REGISTRATIONS, NAME))["status"]
        return next((each["reason"] for each in status.get("conditions", ()) if each["type"] == "DedicatedReady"), "")

    async def says(self, **status):
        await self.client.patch(CONTROL_PLANE_REGISTRATIONS, NAME, {"status": status}, subresource="status")

    async def names(self, resource):
        return {found["metadata"]["name"] for found in (await self.client.list(resource, namespace=NAMESPACE)).items}


@pytest.fixture
async def dedicated(cluster):
    client = cluster.client
    await cluster.namespace(NAMESPACE, **{"pod-security.kubernetes.io/enforce": "restricted"})
    served = await client.create(CONTROL_PLANES, {"metadata": {"name": NAME}, "spec": {}})
    spec = {"controlPlaneRef": {"name": NAME}, "mode": "Dedicated"}
    await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": NAME}, "spec": spec})
    try:
        async with PodRuntime(client, place=place, settings=SETTINGS) as runtime:
            await runtime.synced()
            made = Dedicated(client, runtime)
            await made.says(ready=True, mode="Dedicated", controlPlaneUID=served["metadata"]["uid"])
            yield made
    finally:
        await client.delete(CONTROL_PLANE_REGISTRATIONS, NAME)
        await client.delete(CONTROL_PLANES, NAME)


async def test_it_is_a_pod_with_an_identity_of_its_own_until_its_instance_has_ended(cluster, dedicated):
    assert await dedicated.look() == "McmStarting"
    pod = await cluster.pod(NAMESPACE)
    [name] = await dedicated.names(STATEFUL_SETS)
    assert pod["spec"]["serviceAccountName"] == name
    tokens = [volume for volume in pod["spec"]["volumes"] if "projected" in volume]
    assert len(tokens) == 1
    [container] = pod["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "768Mi"}}
    assert container["args"] == [
        f"--registration={NAME}",
        "--report-status",
        "--state-dir=/var/run/kplane",
        "--programs-dir=/usr/local/bin",
        "--listen=0.0.0.0:8081",
    ]
    await cluster.run_pod(pod)
    await cluster.eventually(dedicated.look, lambda reason: reason == "McmRunning")

    # Its turn is over when its pods have ended, whatever it said itself: nothing is left that could write.
    await dedicated.says(mode="Shared", instance={"mode": "Dedicated"})
    await cluster.eventually(dedicated.look, lambda reason: not reason, timeout=120.0)
    status = (await dedicated.client.get(CONTROL_PLANE_REGISTRATIONS, NAME))["status"]
    assert "instance" not in status
    assert [each["reason"] for each in status["conditions"]] == ["Ended"]
    left = [await dedicated.names(resource) for resource in (STATEFUL_SETS, SERVICES, PODS, SECRETS, SERVICE_ACCOUNTS)]
    assert set().union(*left) <= {"default"}
    roles = await dedicated.client.list(CLUSTER_ROLES, label_selector=f"controlplane.kplane.dev/registration={NAME}")
    assert roles.items == []
