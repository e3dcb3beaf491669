"""A restored control plane begins above all versions that clients have seen, and by no more than that."""

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
    ) as made:
        await keep_identity(made.cluster.client)
        yield made


async def keep_identity(client: Client) -> None:
    with contextlib.suppress(AlreadyExists):
        await client.create(NAMESPACES, {"metadata": {"name": "kplane-system"}})
    identity = base64.b64encode(f"{KEY}\n".encode()).decode()
    metadata = {"name": "identity", "namespace": "kplane-system"}
    await client.apply(SECRETS, {"metadata": metadata, "data": {"identity": identity}}, force=True)


async def save(mover: Mover) -> dict[str, Any]:
    """Make a snapshot, and return its status."""
    client = mover.cluster.client
    spec = {"controlPlaneRef": {"name": NAME}}
    await client.create(CONTROL_PLANE_SNAPSHOTS, {"metadata": {"name": NAME}, "spec": spec})
    saved = await mover.eventually(
        lambda: client.get(CONTROL_PLANE_SNAPSHOTS, NAME),
        lambda found: (found.get("status") or {}).get("phase") == "Completed",
        timeout=60,
    )
    return dict(saved["status"])


async def restore_in_its_place(mover: Mover, *, mode: str) -> None:
    """Delete the control plane, and restore its snapshot under its name."""
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
    """Return the version of a list, as clients read it."""
    async with Client(mover.config, field_manager="kplane") as tenant:
        found = await mover.eventually(lambda: tenant.list(CONFIG_MAPS), timeout=60)
    return int(found.resource_version)


async def is_told_to_list_again(mover: Mover, since: int) -> bool:
    """Tell whether a watch from a version gets 410; one that hears nothing runs into the time limit."""
    async with Client(mover.config, field_manager="kplane") as tenant, asyncio.timeout(30):
        try:
            async for _ in tenant.watch(CONFIG_MAPS, resource_version=str(since)):
                pass
        except Expired:
            return True
    return False


async def test_a_restore_after_a_move_begins_above_what_clients_saw(mover: Mover) -> None:
    saved = await save(mover)
    await mover.ask("Dedicated")
    await mover.arrives("Dedicated")
    seen = await version(mover)
    assert seen > saved["revision"] + 1000
    await restore_in_its_place(mover, mode="Virtual")
    found = await mover.cluster.client.get(CONTROL_PLANE_SNAPSHOTS, NAME)
    assert found["status"]["highestRevision"] >= seen
    assert await version(mover) > seen
    assert await is_told_to_list_again(mover, seen)


async def test_one_that_is_restored_into_dedicated_can_move_back(mover: Mover) -> None:
    seen = await version(mover)
    await restore_in_its_place(mover, mode="Dedicated")
    restored = await version(mover)
    assert seen < restored < seen + MOST_RAISED
    assert await is_told_to_list_again(mover, seen)
    await mover.ask("Virtual")
    await mover.arrives("Virtual")
    assert await version(mover) > restored
    assert await is_told_to_list_again(mover, restored)
