"""The Python client against a real management cluster."""

from __future__ import annotations

import contextlib

import pytest

from kplane.api import ControlPlanePhase, DeletionPolicy
from kplane.client import ControlPlanes, NoControlPlane, NoKubeconfig, NotSettled, asleep, awake
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CONFIG_MAPS

pytestmark = pytest.mark.integration

ON_DEMAND = {"virtual": {"start": "OnDemand"}}


async def test_temporary_control_plane_exists_within_its_block(management_cluster: Handle) -> None:
    config = ClusterConfig.load(management_cluster.admin_kubeconfig)
    async with ControlPlanes.connect(config) as control_planes:
        async with control_planes.temporary("short") as short:
            assert short.status.phase is ControlPlanePhase.READY
            async with Client(await control_planes.config("short"), field_manager="kplane") as tenant:
                await tenant.create(CONFIG_MAPS, {"metadata": {"name": "one", "namespace": "default"}})
            assert "short" in [control_plane.name for control_plane in await control_planes.list()]
        with pytest.raises(NoControlPlane, match="there is no ControlPlane short"):
            await control_planes.get("short")


async def test_unsettled_waits_name_phase_and_reason(management_cluster: Handle) -> None:
    config = ClusterConfig.load(management_cluster.admin_kubeconfig)
    async with ControlPlanes.connect(config) as control_planes:
        await control_planes.create("classless", class_name="missing-class")
        try:
            with pytest.raises(NotSettled, match=r"ControlPlane classless is Pending \(ClassNotFound: .*after 5 s"):
                await control_planes.wait("classless", timeout_seconds=5)
            with pytest.raises(NoKubeconfig, match="classless is Pending"):
                await control_planes.kubeconfig("classless")
        finally:
            await control_planes.delete("classless", wait=True)
        with pytest.raises(NotSettled, match="ControlPlane absent is not there"):
            await control_planes.wait("absent", timeout_seconds=0.5)


async def test_watch_yields_changes_until_deletion(management_cluster: Handle) -> None:
    config = ClusterConfig.load(management_cluster.admin_kubeconfig)
    async with ControlPlanes.connect(config) as control_planes:
        await control_planes.create("followed", spec=ON_DEMAND | {"deletionPolicy": "Retain"}, wait=True)
        await control_planes.wake("followed")
        await control_planes.wait("followed", awake)
        await control_planes.sleep("followed")
        await control_planes.wait("followed", asleep)
        received = []
        async with contextlib.aclosing(control_planes.watch("followed")) as changes:
            async for change in changes:
                if not received:
                    await control_planes.delete("followed", policy=DeletionPolicy.DESTROY)
                received.append(change)
                if change.type == "DELETED":
                    break
        assert received[0].type == "ADDED"
        assert received[-1].object.spec.deletion_policy is DeletionPolicy.DESTROY
