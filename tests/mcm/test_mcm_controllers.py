"""What instances do for a control plane, and by which flags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from provider import CLUSTER_ROLES, CONFIG_MAPS, DEPLOYMENTS, NAMESPACES, PODS, Client, Resource

from .control_planes import gone, manifest, works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any

CLAIMS = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims", namespaced=True)
NODES = Resource("v1", "Node", "nodes", namespaced=False)
JOBS = Resource("batch/v1", "Job", "jobs", namespaced=True)
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets", namespaced=True)


def deployment(name: str, *, namespace: str) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "none"}]}}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": pod}
    return manifest("apps/v1", "Deployment", name, namespace=namespace, spec=spec)


def job(name: str, *, namespace: str) -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "none"}]}}
    return manifest("batch/v1", "Job", name, namespace=namespace, spec={"template": pod})


async def test_an_instance_gives_a_control_plane_what_kubernetes_promises(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start()
    name = await fleet.register("a", tenants["one"].controllers_secret(), server=tenants["one"].server)
    await state(name, "Ready")

    namespace = await works(one, eventually)
    root = await eventually(lambda: one.get(CONFIG_MAPS, "kube-root-ca.crt", namespace=namespace))
    assert root["data"]["ca.crt"].encode() == tenants["one"].authorities.serving.certificate

    await one.create(DEPLOYMENTS, deployment("web", namespace=namespace))
    pods = await eventually(lambda: one.list(PODS, namespace=namespace), lambda found: len(found.items) == 3)
    assert {pod["metadata"]["ownerReferences"][0]["kind"] for pod in pods.items} == {"ReplicaSet"}

    # Which is put together of others, one after the other.
    await eventually(
        lambda: one.get(CLUSTER_ROLES, "admin"),
        lambda role: any("deployments" in rule.get("resources", ()) for rule in role["rules"]),
    )

    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    await one.create(CLAIMS, manifest("v1", "PersistentVolumeClaim", "data", namespace=namespace, spec=claim))
    await one.delete(NAMESPACES, namespace)
    await eventually(lambda: gone(one, NAMESPACES, namespace))


async def test_flags_of_its_command_line_are_acted_on_by_the_instance(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start("--controllers=*,-deployment-controller", "--concurrent-gc-syncs", "3")
    secret = tenants["one"].controllers_secret()
    name = await fleet.register("a", secret, server=tenants["one"].server, profile="")
    found = await state(name, "Ready")
    assert found["profile"] == "Explicit"
    command = Path(f"/proc/{found['pid']}/cmdline").read_text().split("\0")
    assert command[command.index("--concurrent-gc-syncs") + 1] == "3"

    namespace = await works(one, eventually)
    await one.create(DEPLOYMENTS, deployment("web", namespace=namespace))
    await one.create(JOBS, job("once", namespace=namespace))
    await eventually(lambda: one.list(PODS, namespace=namespace), lambda found: found.items)
    assert not (await one.list(REPLICA_SETS, namespace=namespace)).items
    await one.delete(NAMESPACES, namespace)


async def test_flags_that_kube_controller_manager_refuses_are_refused_at_the_start(mcm: Any) -> None:
    mcm.start("--nope")
    assert await asyncio.to_thread(mcm.process.wait, 90.0) == 1
    assert "kube-controller-manager refuses its flags: unknown flag: --nope" in mcm.log.read_text()


async def test_a_scheduler_runs_beside_the_controllers_where_it_is_asked_for(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    mcm.start("--scheduler-flag=--kube-api-qps=77")
    secret, server = tenants["one"].controllers_secret(), tenants["one"].server
    name = await fleet.register("a", secret, server=server, services=("Controllers", "Scheduler"))
    found = await state(name, "Ready")
    assert set(await asyncio.to_thread(mcm.instances)) == {found["pid"], found["others"]["kube-scheduler"]}
    await eventually(lambda: fleet.told("a"), lambda told: told == ("True", "InstanceRunning", fleet.uid_at(server)))

    scheduler = Path(f"/proc/{found['others']['kube-scheduler']}/cmdline").read_bytes().split(b"\0")
    assert b"--kube-api-qps=77" in scheduler

    namespace = await works(one, eventually)
    node = f"node-{namespace}"
    capacity = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    await one.create(NODES, manifest("v1", "Node", node, status={"capacity": capacity, "allocatable": capacity}))
    # The API server taints each new node, until a kubelet says that it is ready.
    pod = {"containers": [{"name": "a", "image": "none"}], "tolerations": [{"operator": "Exists"}]}
    await one.create(PODS, manifest("v1", "Pod", "a", namespace=namespace, spec=pod))
    bound = await eventually(lambda: one.get(PODS, "a", namespace=namespace), lambda pod: pod["spec"].get("nodeName"))
    assert bound["spec"]["nodeName"] == node
    labels = f'cluster="{name}",program="kube-scheduler"'
    wanted = [
        f"mcm_instance_scrape_success{{{labels}}} 1.0",
        f'scheduler_schedule_attempts_total{{{labels},result="scheduled"}} 1.0',
        f"process_open_fds{{{labels.replace('scheduler', 'controller-manager')}}}",
    ]
    # It counts an attempt after its end, and one scrape may be too slow.
    await eventually(
        lambda: asyncio.to_thread(mcm.get, "/metrics"), lambda answer: all(line in answer[1] for line in wanted)
    )

    await fleet.resolve("a", server=server, secret="a")
    await state(name, "Ready", lambda found: "others" not in found)
    assert len(await asyncio.to_thread(mcm.instances)) == 1
    await fleet.withdraw("a")
    await eventually(mcm.directories, lambda left: left == [])
    assert not await asyncio.to_thread(mcm.instances)
    await one.delete(NODES, node)
    await one.delete(NAMESPACES, namespace)
