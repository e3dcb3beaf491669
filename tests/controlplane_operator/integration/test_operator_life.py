"""Control planes from creation to deletion, on real API servers and a real etcd."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.components.names import apiserver_name, etcd_name
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.provider import Client
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from kplane.workloads import find_processes

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def keys(field: Any, path: str) -> int:
    return int(await field.handle.tenants_etcd.count(f"/clusters/{path}/"))


_KEPT_ALIVE = {"leases", "masterleases", "peerserverleases", "events"}


async def others(field: Any, name: str) -> dict[str, str]:
    """Return hashes of the keys of other control planes in the shared etcd, once the hashes are stable.

    Leases and Events are excluded, because API servers write them all the time.
    """

    def of_interest(key: str) -> bool:
        return not key.startswith(f"/clusters/{name}/") and not _KEPT_ALIVE & set(key.split("/"))

    async def digests() -> dict[str, str]:
        return dict(await field.handle.tenants_etcd.digests("/clusters/", of_interest=of_interest))

    result: dict[str, str] = await field.settles(digests)
    return result


@pytest.mark.slow
async def test_deletion_keeps_data_of_control_planes_with_same_name_prefix(field: Any) -> None:
    names = ("a", "a-b", "aa")
    for name in names:
        await field.create("ControlPlane", name, deletionPolicy="Destroy")
    for name in names:
        await field.becomes("ControlPlane", name, "Reconciled")
        async with Client(await field.tenant(name), field_manager="kplane") as tenant:
            await tenant.create(
                CONFIG_MAPS, {"metadata": {"name": "mine", "namespace": "default"}, "data": {"of": name}}
            )
    before = await others(field, "a")
    await field.client.delete(CONTROL_PLANES, "a")
    await field.gone(CONTROL_PLANES, "a")
    await field.gone(NAMESPACES, "kplane-cp-a")
    assert await keys(field, "a") == 0
    assert await others(field, "a") == before
    for name in ("a-b", "aa"):
        assert sum(key.startswith(f"/clusters/{name}/") for key in before) > 100
        async with Client(await field.tenant(name), field_manager="kplane") as tenant:
            assert (await tenant.get(CONFIG_MAPS, "mine", namespace="default"))["data"] == {"of": name}


@pytest.mark.slow
async def test_dedicated_control_plane_has_its_own_etcd(field: Any) -> None:
    await field.create("ControlPlane", "own", mode="Dedicated", deletionPolicy="Destroy")
    control_plane = await field.becomes("ControlPlane", "own", "Reconciled")
    assert control_plane["status"]["phase"] == "Ready"
    for component in (apiserver_name("own"), etcd_name("own")):
        assert len(find_processes(field.state / component)) == 1
    assert "clusterPath" not in control_plane["status"]
    async with Client(await field.tenant("own"), field_manager="kplane") as tenant:
        assert {"default", "kube-system", "kplane-system"} <= {
            item["metadata"]["name"] for item in (await tenant.list(NAMESPACES)).items
        }
    await field.client.delete(CONTROL_PLANES, "own")
    await field.gone(CONTROL_PLANES, "own")
    for component in (apiserver_name("own"), etcd_name("own")):
        assert find_processes(field.state / component) == []


async def test_registration_resolves_for_each_order_of_creation(field: Any, door: dict[str, Any]) -> None:
    orders = list(itertools.permutations(("class", "endpoint", "control plane", "registration")))

    async def create(number: int, what: str) -> None:
        name = f"order-{number}"
        match what:
            case "class":
                await field.create("ControlPlaneClass", name, controllers={"profile": "Core"})
            case "endpoint":
                await field.create("ControlPlaneEndpoint", name, **door)
            case "control plane":
                await field.create("ControlPlane", name, classRef={"name": name}, endpointRef={"name": name})
            case _:
                await field.create(
                    "ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["controllers"]
                )

    for number, order in enumerate(orders):
        for kind in order:
            await create(number, kind)
    for number in range(len(orders)):
        registration = await field.becomes("ControlPlaneRegistration", f"order-{number}", "Resolved")
        status = registration["status"]
        assert status["ready"] is True
        assert status["resolvedEndpoint"] == f"{door['endpoint']}/clusters/order-{number}/control-plane"
        assert status["resolvedControllersSecretRef"]["namespace"] == f"kplane-cp-order-{number}"
        assert status["controllers"] == {"profile": "Core"}


async def test_class_registers_control_planes_and_keeps_user_registrations(
    field: Any, adopt: Callable[..., Awaitable[dict[str, Any]]]
) -> None:
    await field.create("ControlPlaneClass", "auto", defaultServices=["controllers"])
    await field.create("ControlPlaneRegistration", "users", controlPlaneRef={"name": "other"}, services=[])
    for name in ("made", "users"):
        await adopt(name, classRef={"name": "auto"})
    await field.becomes("ControlPlaneRegistration", "made", "Resolved")
    await field.becomes("ControlPlane", "users", "Reconciled")
    registration = await field.get("ControlPlaneRegistration", "made")
    assert registration["metadata"]["ownerReferences"][0]["name"] == "made"
    assert (await field.get("ControlPlaneRegistration", "users"))["spec"]["controlPlaneRef"] == {"name": "other"}
