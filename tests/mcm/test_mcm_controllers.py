"""Work of instances in a control plane, and their flags."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kplane.provider import Client, Resource
from kplane.provider.client.resources import DEPLOYMENTS, NAMESPACES, PODS
from kplane.provider.providers.kplane.registration import REGISTRATIONS

from .control_planes import held_by_another, manifest, works

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mcm"), pytest.mark.timeout(300)]

Eventually = Callable[..., Any]
Fleet = Any

MCM_FLAGS = (
    "--controllers=*,-deployment-controller",
    *("--concurrent-gc-syncs", "3"),
    "--scheduler-flag=--kube-api-qps=77",
)

NODES = Resource("v1", "Node", "nodes", namespaced=False)
JOBS = Resource("batch/v1", "Job", "jobs", namespaced=True)
REPLICA_SETS = Resource("apps/v1", "ReplicaSet", "replicasets", namespaced=True)


@pytest.fixture
def mcm(shared_mcm: Any) -> Any:
    return shared_mcm


def deployment(name: str, *, namespace: str) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "none"}]}}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": pod}
    return manifest("apps/v1", "Deployment", name, namespace=namespace, spec=spec)


def job(name: str, *, namespace: str) -> dict[str, Any]:
    pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "none"}]}}
    return manifest("batch/v1", "Job", name, namespace=namespace, spec={"template": pod})


def command_of(pid: int) -> list[str]:
    """Return the program and the arguments of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def name_controllers(fleet: Fleet, name: str, *names: str) -> None:
    """Write explicit controllers to the status, as the operator does from the registration or its class."""
    status = {"controllers": {"explicit": list(names)}}
    await fleet.client.patch(REGISTRATIONS, name, {"status": status}, subresource="status")


async def running_of(fleet: Fleet, name: str) -> dict[str, Any]:
    """Return the condition Running of a registration."""
    conditions: list[dict[str, Any]] = (await fleet.client.get(REGISTRATIONS, name))["status"]["conditions"]
    return next(condition for condition in conditions if condition["type"] == "Running")


async def test_instance_uses_flags_of_mcm_and_explicit_controllers(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    secret = tenants["one"].controllers_secret()
    name = await fleet.register("a", secret, server=tenants["one"].server, profile="")
    summary = await state(name, "Ready")
    assert summary["profile"] == "Explicit"
    command = command_of(summary["pid"])
    assert command[command.index("--concurrent-gc-syncs") + 1] == "3"

    namespace = await works(one, eventually)
    await one.create(DEPLOYMENTS, deployment("web", namespace=namespace))
    await one.create(JOBS, job("once", namespace=namespace))
    await eventually(lambda: one.list(PODS, namespace=namespace), lambda found: found.items)
    assert not (await one.list(REPLICA_SETS, namespace=namespace)).items
    await one.delete(NAMESPACES, namespace)

    # Explicit controllers of the registration replace the flag.
    await name_controllers(fleet, name, "namespace-controller", "serviceaccount-controller")
    named = "--controllers=namespace-controller,serviceaccount-controller"
    await state(name, "Ready", lambda found: named in command_of(found["pid"]))
    await one.delete(NAMESPACES, await works(one, eventually))

    # No instance runs with an unknown controller, and the condition quotes the program.
    await name_controllers(fleet, name, "namespace-controller", "nope")
    sentence = 'kube-controller-manager rejects controllers.explicit: "nope" is not in the list of known controllers'
    await eventually(
        lambda: running_of(fleet, name),
        lambda found: (found["status"], found["reason"]) == ("False", "CannotStart") and sentence in found["message"],
    )
    await eventually(lambda: not mcm.instances())


async def test_scheduler_runs_beside_the_controllers_if_requested(
    mcm: Any, fleet: Fleet, tenants: Any, one: Client, state: Any, eventually: Eventually
) -> None:
    secret, server = tenants["one"].controllers_secret(), tenants["one"].server
    async with held_by_another(one, "kube-scheduler"):
        name = await fleet.register("a", secret, server=server, services=("Controllers", "Scheduler"))
        foreign = ("False", "ForeignControllerManager", fleet.uid_at(server))
        await eventually(lambda: fleet.told("a"), lambda told: told == foreign)
        # The foreign holder blocks only the scheduler.
        await one.delete(NAMESPACES, await works(one, eventually))
        [pid] = await asyncio.to_thread(mcm.instances)
        assert "kube-controller-manager" in command_of(pid)[0]
    summary = await state(name, "Ready")
    assert set(await asyncio.to_thread(mcm.instances)) == {summary["pid"], summary["others"]["kube-scheduler"]}
    await eventually(lambda: fleet.told("a"), lambda told: told == ("True", "InstanceRunning", fleet.uid_at(server)))

    assert "--kube-api-qps=77" in command_of(summary["others"]["kube-scheduler"])

    namespace = await works(one, eventually)
    node = f"node-{namespace}"
    capacity = {"cpu": "1", "memory": "1Gi", "pods": "10"}
    await one.create(NODES, manifest("v1", "Node", node, status={"capacity": capacity, "allocatable": capacity}))
    # The API server taints each new node until a kubelet reports it as ready.
    pod = {"containers": [{"name": "a", "image": "none"}], "tolerations": [{"operator": "Exists"}]}
    await one.create(PODS, manifest("v1", "Pod", "a", namespace=namespace, spec=pod))
    bound = await eventually(lambda: one.get(PODS, "a", namespace=namespace), lambda pod: pod["spec"].get("nodeName"))
    assert bound["spec"]["nodeName"] == node
    labels = f'cluster="{name}",program="kube-scheduler"'
    metric_lines = [
        f"mcm_instance_scrape_success{{{labels}}} 1.0",
        f'scheduler_schedule_attempts_total{{{labels},result="scheduled"}} 1.0',
        f"process_open_fds{{{labels.replace('scheduler', 'controller-manager')}}}",
    ]
    # The scheduler counts an attempt after its end, and a scrape may time out.
    await eventually(
        lambda: asyncio.to_thread(mcm.get, "/metrics"), lambda answer: all(line in answer[1] for line in metric_lines)
    )

    await fleet.resolve("a", server=server, secret="a")
    await state(name, "Ready", lambda found: "others" not in found)
    assert len(await asyncio.to_thread(mcm.instances)) == 1
    await fleet.withdraw("a")
    await eventually(mcm.directories, lambda left: left == [])
    assert not await asyncio.to_thread(mcm.instances)
    await one.delete(NODES, node)
    await one.delete(NAMESPACES, namespace)


async def test_mcm_exits_on_flags_that_kube_controller_manager_rejects(mcm_of: Any, api_server: Any) -> None:
    mcm = mcm_of(api_server.mcm_kubeconfig)
    mcm.start("--nope")
    assert await asyncio.to_thread(mcm.process.wait, 90.0) == 1
    assert "kube-controller-manager rejects its flags: unknown flag: --nope" in mcm.log.read_text()
