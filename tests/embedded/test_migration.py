"""Migrations of control planes behind a gateway, while clients write."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from kplane.binaries.envoy import find_envoy
from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES
from kplane.embedded.cluster import ManagementCluster
from kplane.gateway.control_planes import CONTROL_PLANES
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS, EVENTS
from kplane.provider.errors import Expired
from kplane.workloads import find_processes

from .begun_list import BegunList
from .behind_gateway import certified_config, external_config

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_NAME = "mover"


async def holds(cluster: ManagementCluster) -> int:
    """Return the number of holds of writes that the operator has measured."""
    async with aiohttp.ClientSession() as session, session.get(f"{cluster.handle.operator_url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return int(next(float(line.split()[1]) for line in lines if line.startswith("kplane_migration_hold_seconds_count")))


async def is_too_old(tenant: Client, version: str) -> bool:
    """Tell whether a watch from a version gets 410 Expired, which requires a new list."""
    try:
        async with tenant.watch(CONFIG_MAPS, resource_version=version, timeout_seconds=1) as watch:
            async for _ in watch:
                pass
    except Expired:
        return True
    return False


async def gone(client: Client) -> bool:
    return _NAME not in {item["metadata"]["name"] for item in (await client.list(CONTROL_PLANES)).items}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(binaries: Binaries, namespaces_go_at_once: Callable[..., Any]) -> AsyncIterator[ManagementCluster]:
    directory = Path(tempfile.mkdtemp(prefix="kplane-embedded-"))
    async with (
        ManagementCluster(directory, binaries=binaries, fsync=False, gateway=find_envoy()) as cluster,
        namespaces_go_at_once(ClusterConfig.load(cluster.handle.admin_kubeconfig)),
    ):
        yield cluster
        # Shown if a test has failed.
        for log in ("runtime/controlplane-operator/log", "gateway/runtime/envoy/log"):
            sys.stdout.write((directory / log).read_text()[-8000:])
    assert find_processes(directory) == []
    shutil.rmtree(directory)


@pytest.mark.parametrize(
    "moves",
    [
        [{"mode": "Virtual"}, {"mode": "Dedicated"}, {"mode": "Virtual"}],
        pytest.param(
            [
                {"mode": "Dedicated", "endpointPolicy": "Gateway"},
                {"dedicated": {"volume": {"size": "20Gi"}}},
                {"dedicated": {"volume": {"size": "30Gi"}}},
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["to an etcd of its own and back", "from volume to volume"],
)
async def test_migration_loses_no_write_and_refuses_old_list_versions(
    cluster: ManagementCluster, eventually: Callable[..., Any], moves: list[dict[str, Any]]
) -> None:
    client = cluster.client
    first, *others = moves
    # Encrypted resources migrate as well.
    sealed = {"apiServer": {"encryptedResources": ["configmaps"]}}
    await client.apply(CONTROL_PLANE_CLASSES, {"metadata": {"name": _NAME}, "spec": sealed}, force=True)
    settings = {"classRef": {"name": _NAME}, "deletionPolicy": "Destroy", "migration": {"rollbackWindow": "2s"}}
    spec = {**settings, **first}
    await client.create(CONTROL_PLANES, {"metadata": {"name": _NAME}, "spec": spec})

    async def status() -> dict[str, Any]:
        return dict((await client.get(CONTROL_PLANES, _NAME)).get("status") or {})

    await eventually(status, lambda found: found.get("phase") in {"Ready", "Hibernated"}, timeout=60)
    config = await external_config(client, _NAME)
    certified, _ = await certified_config(client, _NAME)
    hold_count = await holds(cluster)
    written: dict[str, str] = {}
    async with Client(certified, field_manager="kplane") as administrator:
        former = (await administrator.list(CONFIG_MAPS)).resource_version
        begun_list = await BegunList.of(administrator)
    stop = asyncio.Event()

    async def write() -> None:
        async with Client(config, timeout_seconds=60, field_manager="kplane") as tenant:
            number = 0
            while not stop.is_set():
                name = f"entry-{number % 50}"
                body = {"metadata": {"name": name, "namespace": "default"}, "data": {"number": str(number)}}
                await tenant.apply(CONFIG_MAPS, body, force=True)
                written[name] = str(number)
                number += 1

    async with asyncio.TaskGroup() as group:
        writing = group.create_task(write(), name="write")
        for number, change in enumerate(others, start=1):
            await client.patch(CONTROL_PLANES, _NAME, {"spec": change})
            found = await eventually(
                status,
                lambda found, slot=number % 2: (
                    found["home"]["slot"] == slot and found.get("migration", {}).get("step") == "Completed"
                ),
                timeout=90,
            )
            assert found["home"]["mode"] == change.get("mode", "Dedicated")
            assert found["home"].get("volume") == change.get("dedicated", {}).get("volume")
            assert not writing.done()
            async with Client(certified, field_manager="kplane") as administrator:
                assert await is_too_old(administrator, former)
                assert await begun_list.is_refused(administrator)
                former = (await administrator.list(CONFIG_MAPS)).resource_version
                begun_list = await BegunList.of(administrator)
        stop.set()
    async with Client(config, field_manager="kplane") as tenant:
        found = await tenant.list(CONFIG_MAPS, namespace="default")
    numbers = {item["metadata"]["name"]: item.get("data", {}).get("number") for item in found.items}
    assert {name: numbers.get(name) for name in written} == written
    assert await holds(cluster) == hold_count + len(others)

    async def told() -> set[str]:
        events = (await client.list(EVENTS, namespace="default")).items
        return {event["reason"] for event in events if event["involvedObject"]["name"] == _NAME}

    await eventually(told, {"MigrationStarted", "MigrationCut", "MigrationCompleted"}.issubset)
    await client.delete(CONTROL_PLANES, _NAME)
    await eventually(lambda: gone(client), timeout=90)
