"""What is paused is left alone, its deletion included, and goes on at once afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import Client, NotFound, Resource
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PAUSE = "controlplane.kplane.dev/paused"


Adopt = Callable[..., Awaitable[dict[str, Any]]]


async def pause(field: Any, resource: Resource, name: str, value: str | None = "true") -> None:
    await field.client.patch(resource, name, {"metadata": {"annotations": {PAUSE: value}}})


async def looked_at(field: Any, resource: Resource, name: str) -> dict[str, Any]:
    """Wait until the operator has seen the object as it is now, and says that it is paused."""

    async def told() -> dict[str, Any]:
        found: dict[str, Any] = await field.client.get(resource, name)
        return found

    def is_present(found: dict[str, Any]) -> bool:
        told = paused(found)
        return bool(told) and told["observedGeneration"] == found["metadata"]["generation"]

    found: dict[str, Any] = await field.eventually(told, is_present)
    assert paused(found)["status"] == "True"
    return found


def paused(obj: dict[str, Any]) -> dict[str, Any]:
    conditions = obj.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Paused"), {})


async def secret(field: Any, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = await field.client.get(
            SECRETS, f"controlplane-{name}-kubeconfig", namespace=f"kplane-cp-{name}"
        )
    except NotFound:
        return None
    return found


async def test_a_paused_control_plane_is_left_alone_and_goes_on_afterwards(field: Any, adopt: Adopt) -> None:
    await adopt("rest", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "rest", "Reconciled")
    before = await field.settles(lambda: field.get("ControlPlane", "rest"))
    await pause(field, CONTROL_PLANES, "rest")
    await looked_at(field, CONTROL_PLANES, "rest")
    await field.client.delete(SECRETS, "controlplane-rest-kubeconfig", namespace="kplane-cp-rest")
    await field.client.patch(CONTROL_PLANES, "rest", {"spec": {"deletionPolicy": "Retain"}})
    found = await looked_at(field, CONTROL_PLANES, "rest")
    assert await secret(field, "rest") is None
    conditions = [each for each in found["status"]["conditions"] if each["type"] != "Paused"]
    assert {**found["status"], "conditions": conditions} == before["status"]

    await pause(field, CONTROL_PLANES, "rest", None)
    await field.eventually(lambda: secret(field, "rest"))
    await field.eventually(
        lambda: field.get("ControlPlane", "rest"),
        lambda found: not paused(found) and found["status"]["deletionPolicy"] == "Retain",
    )
    await field.client.patch(CONTROL_PLANES, "rest", {"spec": {"deletionPolicy": "Destroy"}})


async def test_the_deletion_of_a_paused_control_plane_waits_and_says_so(field: Any, adopt: Adopt) -> None:
    await adopt("stay", deletionPolicy="Destroy")
    await field.create("ControlPlaneRegistration", "stay", controlPlaneRef={"name": "stay"}, services=["Controllers"])
    registered = await field.becomes("ControlPlaneRegistration", "stay", "Resolved")
    await pause(field, CONTROL_PLANES, "stay")
    await looked_at(field, CONTROL_PLANES, "stay")
    await field.client.delete(CONTROL_PLANES, "stay")

    def waits(found: dict[str, Any]) -> bool:
        return "its deletion waits as well" in paused(found).get("message", "")

    found = await field.eventually(lambda: field.get("ControlPlane", "stay"), waits)
    assert found["status"]["phase"] == "Terminating"
    # Nothing was ended: the services of its registrations, its data and credentials are as they were.
    assert (await field.get("ControlPlaneRegistration", "stay"))["status"] == registered["status"]
    assert await secret(field, "stay") is not None
    async with Client(await field.tenant("stay"), field_manager="kplane") as tenant:
        assert (await tenant.list(NAMESPACES)).items

    await pause(field, CONTROL_PLANES, "stay", None)
    await field.gone(CONTROL_PLANES, "stay")
    await field.gone(NAMESPACES, "kplane-cp-stay")
    await field.becomes("ControlPlaneRegistration", "stay", "ControlPlaneNotFound")


async def test_nothing_is_made_for_what_is_created_paused(field: Any, adopt: Adopt) -> None:
    await adopt("later", annotations={PAUSE: "true"}, deletionPolicy="Destroy")
    found = await looked_at(field, CONTROL_PLANES, "later")
    assert found["status"]["phase"] == "Pending"
    assert "finalizers" not in found["metadata"]
    with pytest.raises(NotFound):
        await field.client.get(NAMESPACES, "kplane-cp-later")
    await pause(field, CONTROL_PLANES, "later", "false")
    await field.becomes("ControlPlane", "later", "Reconciled")


async def test_a_paused_registration_stays_as_it_resolved(field: Any, adopt: Adopt) -> None:
    await field.create("ControlPlaneClass", "profiled", controllers={"profile": "Core"})
    await adopt("frozen", classRef={"name": "profiled"})
    await field.create(
        "ControlPlaneRegistration", "frozen", controlPlaneRef={"name": "frozen"}, services=["controllers"]
    )
    before = await field.becomes("ControlPlaneRegistration", "frozen", "Resolved")
    await pause(field, CONTROL_PLANE_REGISTRATIONS, "frozen")
    await looked_at(field, CONTROL_PLANE_REGISTRATIONS, "frozen")
    await field.client.patch(CONTROL_PLANE_CLASSES, "profiled", {"spec": {"controllers": {"profile": "Full"}}})
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "frozen", {"spec": {"services": []}})
    found = await looked_at(field, CONTROL_PLANE_REGISTRATIONS, "frozen")
    assert found["status"]["controllers"] == before["status"]["controllers"] == {"profile": "Core"}
    assert found["status"]["services"] == ["Controllers"]

    await pause(field, CONTROL_PLANE_REGISTRATIONS, "frozen", None)

    def is_up_to_date(found: dict[str, Any]) -> bool:
        status = found["status"]
        return "services" not in status and status["controllers"] == {"profile": "Full"} and not paused(found)

    await field.eventually(lambda: field.get("ControlPlaneRegistration", "frozen"), is_up_to_date)
