"""Versions of a restored control plane: above all versions that clients have seen, by less than `MOST_RAISED`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyrage
import pytest
import pytest_asyncio

from kplane.binaries.programs import Binaries
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS, CONTROL_PLANES
from kplane.data.revision import MOST_RAISED
from kplane.provider import AlreadyExists, Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from kplane.provider.errors import Expired

from .begun_list import BegunList
from .behind_gateway import external_config
from .moving import Mover, moving_cluster

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME = "returner"
KEY = pyrage.x25519.Identity.generate()
SOURCE = {"snapshotRef": {"name": NAME}, "identitySecretRef": {"name": "identity"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mover(
    binaries: Binaries, eventually: Callable[..., Any], namespaces_go_at_once: Callable[..., Any]
) -> AsyncIterator[Mover]:
    async with moving_cluster(
        binaries,
        name=NAME,
        eventually=eventually,
        namespaces_go_at_once=namespaces_go_at_once,
        operator_arguments=(f"--snapshot-recipient={KEY.to_public()}",),
    ) as mover:
        await keep_identity(mover.cluster.client)
        yield mover


async def keep_identity(client: Client) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": "kplane-system"}})
    identity = base64.b64encode(f"{KEY}\n".encode()).decode()
    metadata = {"name": "identity", "namespace": "kplane-system"}
    await client.apply(SECRETS, {"metadata": metadata, "data": {"identity": identity}}, force=True)


async def save(mover: Mover) -> dict[str, Any]:
    """Create a snapshot, wait until it completes, and return its status."""
    client = mover.cluster.client
    spec = {"controlPlaneRef": {"name": NAME}}
    await client.create(CONTROL_PLANE_SNAPSHOTS, {"metadata": {"name": NAME}, "spec": spec})
    snapshot = await mover.eventually(
        lambda: client.get(CONTROL_PLANE_SNAPSHOTS, NAME),
        lambda found: (found.get("status") or {}).get("phase") == "Completed",
        timeout=60,
    )
    return dict(snapshot["status"])


async def restore_in_its_place(mover: Mover, *, mode: str) -> None:
    """Delete the control plane, and restore its snapshot under the same name."""
    client = mover.cluster.client
    uid = mover.seen["ControlPlane"]["metadata"]["uid"]
    await client.delete(CONTROL_PLANES, NAME)
    await mover.eventually(lambda: client.exists(CONTROL_PLANES, NAME), lambda found: not found, timeout=120)
    spec = {
        "mode": mode,
        "deletionPolicy": "Destroy",
        "endpointPolicy": "Gateway",
        "migration": {"rollbackWindow": "2s"},
        "source": SOURCE,
    }
    await client.create(CONTROL_PLANES, {"metadata": {"name": NAME}, "spec": spec})
    await mover.until(
        lambda: mover.seen["ControlPlane"]["metadata"]["uid"] != uid and mover.status.get("phase") == "Ready"
    )
    mover.config = await external_config(client, NAME)


async def version(mover: Mover) -> int:
    """Return the resourceVersion of a list, as clients read it."""
    async with Client(mover.config, field_manager="kplane") as tenant:
        config_maps = await mover.eventually(lambda: tenant.list(CONFIG_MAPS), timeout=60)
    return int(config_maps.resource_version)


async def begin_list(mover: Mover) -> BegunList:
    """Read the first page of a list."""
    async with Client(mover.config, field_manager="kplane") as tenant:
        begun_list: BegunList = await mover.eventually(lambda: BegunList.of(tenant), timeout=60)
    return begun_list


async def is_refused(mover: Mover, begun_list: BegunList) -> bool:
    """Tell whether the restored control plane refuses to continue a list of the former one."""
    async with Client(mover.config, field_manager="kplane") as tenant:
        return await begun_list.is_refused(tenant)


async def is_told_to_list_again(mover: Mover, since: int) -> bool:
    """Tell whether a watch from a version gets 410. Raises TimeoutError if the watch receives no event in 30 s."""
    async with Client(mover.config, field_manager="kplane") as tenant, asyncio.timeout(30):
        try:
            async for _ in tenant.watch(CONFIG_MAPS, resource_version=str(since)):
                pass
        except Expired:
            return True
    return False


async def test_restore_after_move_starts_above_versions_clients_saw(mover: Mover) -> None:
    snapshot_status = await save(mover)
    await mover.ask("Dedicated")
    await mover.arrives("Dedicated")
    version_before = await version(mover)
    assert version_before > snapshot_status["revision"] + 1000
    begun_list = await begin_list(mover)
    await restore_in_its_place(mover, mode="Virtual")
    snapshot = await mover.cluster.client.get(CONTROL_PLANE_SNAPSHOTS, NAME)
    assert snapshot["status"]["highestRevision"] >= version_before
    assert await version(mover) > version_before
    assert await is_told_to_list_again(mover, version_before)
    assert await is_refused(mover, begun_list)


async def test_restored_dedicated_control_plane_moves_to_virtual(mover: Mover) -> None:
    version_before, begun_list = await version(mover), await begin_list(mover)
    await restore_in_its_place(mover, mode="Dedicated")
    restored_version = await version(mover)
    assert version_before < restored_version < version_before + MOST_RAISED
    assert await is_told_to_list_again(mover, version_before)
    assert await is_refused(mover, begun_list)
    await mover.ask("Virtual")
    await mover.arrives("Virtual")
    assert await version(mover) > restored_version
    assert await is_told_to_list_again(mover, restored_version)
