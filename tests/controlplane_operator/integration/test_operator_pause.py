"""The operator does not reconcile or delete paused objects, and continues at once after a pause."""

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
    """Wait until condition Paused of the object has its present generation."""

    async def told() -> dict[str, Any]:
        obj: dict[str, Any] = await field.client.get(resource, name)
        return obj

    def is_present(found: dict[str, Any]) -> bool:
        condition = paused(found)
        return bool(condition) and condition["observedGeneration"] == found["metadata"]["generation"]

    observed: dict[str, Any] = await field.eventually(told, is_present)
    assert paused(observed)["status"] == "True"
    return observed


def paused(obj: dict[str, Any]) -> dict[str, Any]:
    conditions = obj.get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == "Paused"), {})


async def secret(field: Any, name: str) -> dict[str, Any] | None:
    try:
        obj: dict[str, Any] = await field.client.get(
            SECRETS, f"controlplane-{name}-kubeconfig", namespace=f"kplane-cp-{name}"
        )
    except NotFound:
        return None
    return obj


async def test_paused_control_plane_is_not_reconciled_until_unpaused(field: Any, adopt: Adopt) -> None:
    await adopt("rest", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "rest", "Reconciled")
    before = await field.settles(lambda: field.get("ControlPlane", "rest"))
    await pause(field, CONTROL_PLANES, "rest")
    await looked_at(field, CONTROL_PLANES, "rest")
    await field.client.delete(SECRETS, "controlplane-rest-kubeconfig", namespace="kplane-cp-rest")
    await field.client.patch(CONTROL_PLANES, "rest", {"spec": {"deletionPolicy": "Retain"}})
    control_plane = await looked_at(field, CONTROL_PLANES, "rest")
    assert await secret(field, "rest") is None
    conditions = [item for item in control_plane["status"]["conditions"] if item["type"] != "Paused"]
    assert {**control_plane["status"], "conditions": conditions} == before["status"]

    await pause(field, CONTROL_PLANES, "rest", None)
    await field.eventually(lambda: secret(field, "rest"))
    await field.eventually(
        lambda: field.get("ControlPlane", "rest"),
        lambda found: not paused(found) and found["status"]["deletionPolicy"] == "Retain",
    )
    await field.client.patch(CONTROL_PLANES, "rest", {"spec": {"deletionPolicy": "Destroy"}})


async def test_deletion_of_paused_control_plane_waits_with_a_message(field: Any, adopt: Adopt) -> None:
    await adopt("stay", deletionPolicy="Destroy")
    await field.create("ControlPlaneRegistration", "stay", controlPlaneRef={"name": "stay"}, services=["Controllers"])
    registered = await field.becomes("ControlPlaneRegistration", "stay", "Resolved")
    await pause(field, CONTROL_PLANES, "stay")
    await looked_at(field, CONTROL_PLANES, "stay")
    await field.client.delete(CONTROL_PLANES, "stay")

    def waits(found: dict[str, Any]) -> bool:
        return "its deletion waits as well" in paused(found).get("message", "")

    control_plane = await field.eventually(lambda: field.get("ControlPlane", "stay"), waits)
    assert control_plane["status"]["phase"] == "Terminating"
    # The services of its registrations, its data and its credentials stay.
    assert (await field.get("ControlPlaneRegistration", "stay"))["status"] == registered["status"]
    assert await secret(field, "stay") is not None
    async with Client(await field.tenant("stay"), field_manager="kplane") as tenant:
        assert (await tenant.list(NAMESPACES)).items

    await pause(field, CONTROL_PLANES, "stay", None)
    await field.gone(CONTROL_PLANES, "stay")
    await field.gone(NAMESPACES, "kplane-cp-stay")
    await field.becomes("ControlPlaneRegistration", "stay", "ControlPlaneNotFound")


async def test_control_plane_created_paused_has_no_namespace(field: Any, adopt: Adopt) -> None:
    await adopt("later", annotations={PAUSE: "true"}, deletionPolicy="Destroy")
    control_plane = await looked_at(field, CONTROL_PLANES, "later")
    assert control_plane["status"]["phase"] == "Pending"
    assert "finalizers" not in control_plane["metadata"]
    with pytest.raises(NotFound):
        await field.client.get(NAMESPACES, "kplane-cp-later")
    await pause(field, CONTROL_PLANES, "later", "false")
    await field.becomes("ControlPlane", "later", "Reconciled")


async def test_paused_registration_keeps_its_resolved_status(field: Any, adopt: Adopt) -> None:
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
    registration = await looked_at(field, CONTROL_PLANE_REGISTRATIONS, "frozen")
    assert registration["status"]["controllers"] == before["status"]["controllers"] == {"profile": "Core"}
    assert registration["status"]["services"] == ["Controllers"]

    await pause(field, CONTROL_PLANE_REGISTRATIONS, "frozen", None)

    def is_up_to_date(found: dict[str, Any]) -> bool:
        status = found["status"]
        return "services" not in status and status["controllers"] == {"profile": "Full"} and not paused(found)

    await field.eventually(lambda: field.get("ControlPlaneRegistration", "frozen"), is_up_to_date)
