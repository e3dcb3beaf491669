"""Fake nodes of the real kwok, and Pods of a control plane on them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kplane.api.names import FAKE_NODES_ANNOTATION
from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries, resolve
from kplane.client import ControlPlanes
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.embedded.cluster import ManagementCluster
from kplane.provider import Client, ClusterConfig, Resource
from kplane.provider.client.resources import DEPLOYMENTS, EVENTS, LEASES, NODES, PODS
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.slow]

_NAME = "acme"
_SHOWN = 8000
_JOBS = Resource("batch/v1", "Job", "jobs", namespaced=True)
_TEMPLATE = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "initContainers": [{"name": "first", "image": "example"}],
        "containers": [{"name": "main", "image": "example"}],
    },
}
_SELECTOR = {"matchLabels": {"app": "web"}}


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    yield path
    # Shown if the test has failed.
    for log in (path / "fake-nodes").glob("*/log"):
        sys.stdout.write(f"{log}:\n{log.read_text()[-_SHOWN:]}")
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def kwok() -> Path:
    return resolve(programs=("kwok",)).path("kwok")


async def _nodes(tenant: Client) -> dict[str, bool]:
    return {
        node["metadata"]["name"]: any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in node["status"].get("conditions", ())
        )
        for node in (await tenant.list(NODES)).items
    }


async def _running(tenant: Client) -> list[dict[str, Any]]:
    """Return the running Pods of the Deployment without a deletionTimestamp."""
    pods = (await tenant.list(PODS, namespace="default", label_selector="app=web")).items
    return [
        pod for pod in pods if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]


async def _available(tenant: Client) -> int:
    return int((await tenant.get(DEPLOYMENTS, "web", namespace="default"))["status"].get("availableReplicas", 0))


async def _holders(tenant: Client) -> set[str]:
    return {lease["spec"]["holderIdentity"] for lease in (await tenant.list(LEASES, namespace="kube-node-lease")).items}


def _listens_at(pid: int) -> set[str]:
    """Return the addresses at which a process listens. IPv6 addresses keep the format of /proc/net/tcp6."""
    sockets, addresses = set(), set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets.add(os.readlink(path))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and f"socket:[{columns[9]}]" in sockets:
                address = columns[1].partition(":")[0]
                addresses.add(str(ipaddress.IPv4Address(bytes.fromhex(address)[::-1])) if table == "tcp" else address)
    return addresses


async def test_pods_run_on_fake_nodes_across_scaling_and_restart(
    directory: Path,
    binaries: Binaries,
    kwok: Path,
    eventually: Callable[..., Any],
    namespaces_go_at_once: Callable[..., Any],
) -> None:
    start = partial(ManagementCluster, directory, binaries=binaries, fsync=False, gateway=find_envoy(), kwok=kwok)
    async with start() as cluster:
        control_planes = ControlPlanes(cluster.client)
        assert await control_planes.has_fake_nodes()
        # A control plane with an invalid annotation does not affect the other control plane.
        await control_planes.create("globex", annotations={FAKE_NODES_ANNOTATION: "many"})
        spec = {"deletionPolicy": "Destroy"}
        await control_planes.create(_NAME, spec=spec, annotations={FAKE_NODES_ANNOTATION: "3"})
        await control_planes.register(_NAME, services=("controllers", "scheduler"), profile="Full")
        await control_planes.wait(_NAME)
        # The control plane starts asleep, and kwok's requests wake it.
        await control_planes.wait_for_nodes(_NAME, 3, timeout_seconds=90)
        async with Client(await control_planes.config(_NAME), field_manager="kplane") as tenant:
            body = {
                "metadata": {"name": "web", "namespace": "default"},
                "spec": {"replicas": 3, "selector": _SELECTOR, "template": _TEMPLATE},
            }
            await eventually(lambda: tenant.apply(DEPLOYMENTS, body, force=True))
            await eventually(lambda: _available(tenant), lambda found: found == 3, timeout=90)
            pods = await _running(tenant)
            assert len({pod["status"]["podIP"] for pod in pods}) == 3
            assert {pod["status"]["hostIP"].rpartition(".")[0] for pod in pods} == {"198.18.0"}
            (pid,) = find_processes(directory / "fake-nodes")
            assert _listens_at(pid) == {"127.0.0.1"}
            former = await _holders(tenant)
            assert len(former) == 1

            # Pods of a Job complete, and the Deployment replaces deleted Pods.
            template = {"spec": {**_TEMPLATE["spec"], "restartPolicy": "Never"}}
            job = {"metadata": {"name": "once", "namespace": "default"}, "spec": {"template": template}}
            await tenant.apply(_JOBS, job, force=True)
            await eventually(
                lambda: tenant.get(_JOBS, "once", namespace="default"), lambda found: found["status"].get("succeeded")
            )
            await tenant.delete(PODS, pods[0]["metadata"]["name"], namespace="default")
            await eventually(lambda: _running(tenant), lambda found: len(found) == 3 and pods[0] not in found)

            # The number of nodes drops to 1, then rises to 2.
            await cluster.client.patch(CONTROL_PLANES, _NAME, _annotated("1"))
            await eventually(lambda: _nodes(tenant), lambda found: found == {"fake-node-1": True})
            await eventually(
                lambda: _running(tenant),
                lambda found: [pod["spec"]["nodeName"] for pod in found] == ["fake-node-1"] * 3,
                timeout=90,
            )
            await cluster.client.patch(CONTROL_PLANES, _NAME, _annotated("2"))
            await eventually(lambda: _nodes(tenant), lambda found: found == {"fake-node-1": True, "fake-node-2": True})
        events = (await cluster.client.list(EVENTS, namespace="default")).items
        assert ("globex", "FakeNodesInvalid") in [
            (event["involvedObject"]["name"], event["reason"]) for event in events
        ]
    assert find_processes(directory) == []

    async with start() as cluster, namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)):
        control_planes = ControlPlanes(cluster.client)
        config = await eventually(lambda: control_planes.config(_NAME))
        async with Client(config, field_manager="kplane") as tenant:
            # A new kwok manages the nodes, and does not wait for the Leases of the former kwok.
            await eventually(lambda: _holders(tenant), lambda found: found and not found & former, timeout=30)
            await tenant.patch(DEPLOYMENTS, "web", {"spec": {"replicas": 5}}, namespace="default")
            await eventually(lambda: _available(tenant), lambda found: found == 5, timeout=90)
            assert len(find_processes(directory / "fake-nodes")) == 1

            await cluster.client.patch(CONTROL_PLANES, _NAME, _annotated(None))
            await eventually(lambda: _nodes(tenant), lambda found: found == {})
            await eventually(lambda: find_processes(directory / "fake-nodes"), lambda found: found == [])
            await eventually(lambda: _running(tenant), lambda found: found == [], timeout=90)

            await cluster.client.patch(CONTROL_PLANES, _NAME, _annotated("1"))
            await eventually(lambda: _nodes(tenant), lambda found: found == {"fake-node-1": True})
        await control_planes.delete(_NAME, wait=True)
        await eventually(lambda: find_processes(directory / "fake-nodes"), lambda found: found == [])
        assert not [path for path in (directory / "fake-nodes").iterdir() if path.is_dir()]
    assert find_processes(directory) == []

    # Without kwok, the cluster reports that fake nodes are unavailable.
    async with ManagementCluster(directory, binaries=binaries, fsync=False) as cluster:
        assert not await ControlPlanes(cluster.client).has_fake_nodes()
    assert find_processes(directory) == []


async def test_control_plane_with_host_name_gets_fake_nodes(directory: Path, binaries: Binaries, kwok: Path) -> None:
    """The host name is below localhost, which the resolver of this machine may not know."""
    async with ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy(), kwok=kwok) as cluster:
        control_planes = ControlPlanes(cluster.client)
        spec = {"deletionPolicy": "Destroy", "endpointStyle": "HostName"}
        await control_planes.create(_NAME, spec=spec, annotations={FAKE_NODES_ANNOTATION: "1"})
        await control_planes.wait(_NAME)
        await control_planes.wait_for_nodes(_NAME, 1, timeout_seconds=90)
        config = await control_planes.config(_NAME)
        assert (config.server, config.tls_server_name) == (cluster.handle.gateway_url, f"{_NAME}.localhost")
        async with Client(config, field_manager="kplane") as tenant:
            assert await _nodes(tenant) == {"fake-node-1": True}
        await control_planes.delete(_NAME, wait=True)
    assert find_processes(directory) == []


def _annotated(value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {FAKE_NODES_ANNOTATION: value}}}
