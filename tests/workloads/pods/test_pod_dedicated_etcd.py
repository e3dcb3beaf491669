"""Pods of a dedicated control plane while its class changes. The provisioner creates the pods on a cluster."""

from __future__ import annotations

import pytest

from kplane.api import ControlPlane
from kplane.api.reasons import Reason
from kplane.components.names import apiserver_name, etcd_name, place
from kplane.controlplane_operator.backends.dedicated import DedicatedProvisioner
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.controlplane_operator.secret_access import SecretAccess
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.events import Events
from kplane.controlplane_operator.status.writer import StatusWriter
from kplane.controlplane_operator.watch.stores import Stores
from kplane.controlplane_operator.watch.triggers import Triggers
from kplane.provider import Cache
from kplane.workloads import Phase
from kplane.workloads.pods import Image, PodRuntime, PodSettings

pytestmark = pytest.mark.integration

SETTINGS = PodSettings(
    images={name: Image(f"registry.example/{name}:v1.36.3") for name in ("etcd", "kube-apiserver")},
    ports={"https": 6443, "client": 2379, "peer": 2380, "metrics": 2381},
)
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}


class Dedicated:
    """A control plane, its class, and the pods of both programs."""

    def __init__(self, cluster, runtime, *, name):
        self.cluster, self.runtime, self.name = cluster, runtime, name
        self.etcd, self.api_server = etcd_name(name), apiserver_name(name)
        self.stores = Stores()
        events = Events(cluster.client)
        context = OperatorContext(
            client=cluster.client,
            stores=self.stores,
            triggers=Triggers(),
            status=StatusWriter(cluster.client, events=events),
            events=events,
            access=Access(cluster.client, Cache(cluster.client), shared=Account("kplane-system", "mcm")),
            secrets=SecretAccess(cluster.client, stores=self.stores, namespace="kplane-system"),
        )
        self.provisioner = DedicatedProvisioner(context, runtime=runtime, quota_bytes=1 << 30, restorer=None)
        self.published = False
        self.version = 0

    def ask(self, **selector):
        """Change the class."""
        self.version += 1
        metadata = {"name": self.name, "resourceVersion": str(self.version)}
        spec = {"pods": {"nodeSelector": selector}} if selector else {}
        self.stores.classes.apply({"kind": CONTROL_PLANE_CLASSES.kind, "metadata": metadata, "spec": spec})

    async def look(self):
        """Reconcile once. Returns the reason and message of the condition, and the seconds until the next pass."""
        status = {"endpoint": "https://acme:6443", "version": "1.36.3"} if self.published else {}
        spec = {"mode": "Dedicated", "classRef": {"name": self.name}}
        metadata = {"name": self.name, "uid": self.name}
        control_plane = ControlPlane.model_validate({"metadata": metadata, "spec": spec, "status": status})
        try:
            result = await self.provisioner.ensure(control_plane)
        except ConditionError as error:
            return error.reason, error.message, None
        lag = result.lag
        return lag.reason if lag else None, lag.message if lag else "", result.again_seconds

    async def pod(self, component, **selector):
        """Wait for the pod of a component with this node selector."""
        label = "controlplane.kplane.dev/component"

        async def pods():
            return [
                pod
                for pod in await self.cluster.pods(place(component).namespace)
                if pod["metadata"]["labels"][label] == component and pod["spec"].get("nodeSelector", {}) == selector
            ]

        return (await self.cluster.eventually(pods, lambda found: len(found) == 1))[0]

    async def run(self, component, **selector):
        """Play the scheduler and the kubelet for the pod of a component."""
        pod = await self.pod(component, **selector)
        await self.cluster.run_pod(pod)
        await self.cluster.phase(self.runtime, component, Phase.READY)
        return pod

    async def become_ready(self, **selector):
        self.ask(**selector)
        assert (await self.look())[0] is Reason.PROVISIONING
        first = await self.run(self.etcd, **selector)
        # The data of etcd get a mark. From then on, the pod has arguments with which etcd does not begin anew.
        assert (await self.look())[0] is Reason.PROVISIONING
        await self.cluster.eventually(
            lambda: self.pod(self.etcd, **selector), lambda pod: pod["metadata"]["uid"] != first["metadata"]["uid"]
        )
        await self.run(self.etcd, **selector)
        self.published = True
        await self.look()
        await self.run(self.api_server, **selector)
        await self.cluster.eventually(self.look, lambda said: said == (None, "", None))


@pytest.fixture
async def dedicated(cluster, request, monkeypatch):
    # No etcd runs here. Both methods only connect to etcd to read or fence its data.
    async def nothing(*_arguments, **_options):
        return None

    async def unknown(*_arguments, **_options):
        return None, None

    monkeypatch.setattr(DedicatedProvisioner, "_identify", unknown)
    monkeypatch.setattr(DedicatedProvisioner, "set_writable", nothing)
    name = request.function.__name__.removeprefix("test_").replace("_", "-")[:30].strip("-")
    await cluster.namespace(place(etcd_name(name)).namespace)
    async with PodRuntime(cluster.client, place=place, settings=SETTINGS) as runtime:
        await runtime.synced()
        yield Dedicated(cluster, runtime, name=name)


async def test_node_selector_without_nodes_leaves_etcd_running(cluster, dedicated):
    await dedicated.become_ready(disk="ssd")
    etcd = await dedicated.pod(dedicated.etcd, disk="ssd")
    dedicated.ask(disk="sdd")
    await dedicated.look()
    stuck_pod = await dedicated.pod(dedicated.api_server, disk="sdd")
    await cluster.say(stuck_pod, phase="Pending", conditions=[UNSCHEDULABLE])
    reason, message, _ = await cluster.eventually(dedicated.look, lambda said: "0/3 nodes" in said[1])
    assert reason is Reason.ROLLING_OUT
    assert "etcd keeps its nodes until kube-apiserver runs with the pod settings of the class" in message
    # The etcd container may restart while the API server has no node.
    not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:01:00Z"}
    await cluster.say(etcd, conditions=[not_ready])
    await cluster.phase(dedicated.runtime, dedicated.etcd, Phase.UNREADY)
    assert (await dedicated.look())[0] is Reason.API_SERVER_NOT_READY
    assert (await dedicated.pod(dedicated.etcd, disk="ssd"))["metadata"]["uid"] == etcd["metadata"]["uid"]
    await dedicated.run(dedicated.etcd, disk="ssd")

    dedicated.ask(disk="nvme")
    await dedicated.look()
    await dedicated.run(dedicated.api_server, disk="nvme")
    await cluster.eventually(dedicated.look, lambda said: said[0] is Reason.API_SERVER_NOT_READY)
    await dedicated.run(dedicated.etcd, disk="nvme")
    await cluster.eventually(dedicated.look, lambda said: said == (None, "", None))


async def test_etcd_without_a_node_gets_corrected_class(cluster, dedicated):
    await dedicated.become_ready(disk="ssd")
    etcd = await dedicated.pod(dedicated.etcd, disk="ssd")
    await cluster.say(etcd, conditions=[UNSCHEDULABLE], containerStatuses=[])
    await cluster.phase(dedicated.runtime, dedicated.etcd, Phase.STARTING)
    dedicated.ask(disk="nvme")
    assert (await dedicated.look())[0] is Reason.API_SERVER_NOT_READY
    await dedicated.run(dedicated.etcd, disk="nvme")


async def test_etcd_follows_after_a_restart_of_the_operator(cluster, dedicated):
    await dedicated.become_ready(disk="ssd")
    dedicated.ask(disk="nvme")
    await dedicated.look()
    await dedicated.run(dedicated.api_server, disk="nvme")
    async with PodRuntime(cluster.client, place=place, settings=SETTINGS) as runtime:
        await runtime.synced()
        restarted = Dedicated(cluster, runtime, name=dedicated.name)
        restarted.published = True
        restarted.ask(disk="nvme")
        await cluster.eventually(
            lambda: runtime.state(dedicated.api_server), lambda state: state.phase is Phase.READY and not state.rolling
        )
        # The provisioner schedules the next pass itself, because no watched object changes and starts a pass.
        assert (await restarted.look())[2] is not None
        await restarted.look()
        await restarted.run(restarted.etcd, disk="nvme")
