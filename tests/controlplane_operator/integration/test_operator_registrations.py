"""Registrations: resolution in any order of creation, reports of deletions, and owners of fields."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import ClusterConfig, Conflict

from .conftest import keep_kubeconfig

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]


async def status_of(field: Any, name: str) -> dict[str, Any]:
    status: dict[str, Any] = (await field.get("ControlPlaneRegistration", name)).get("status", {})
    return status


@pytest.mark.timeout(420)
@pytest.mark.parametrize("many", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_registrations_created_before_their_control_planes_resolve(
    field: Any, shared: ClusterConfig, many: int
) -> None:
    """The Go operator leaves 137 of 200 registrations unresolved for good, because it reconciles each only once."""
    class_name = f"of-{many}"
    names = [f"of-{many}-{number}" for number in range(many)]
    secret = {"name": class_name, "namespace": "default"}

    async def register(name: str) -> None:
        await field.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])

    async def control_plane(name: str) -> None:
        await field.create("ControlPlane", name, classRef={"name": class_name}, endpointRef={"name": name})

    async def endpoint(name: str) -> None:
        await field.create("ControlPlaneEndpoint", name, endpoint=shared.server, credentialsSecretRef=secret)

    await asyncio.gather(*map(register, names))
    await asyncio.gather(*map(control_plane, names))
    await asyncio.gather(*map(endpoint, names))
    await field.create("ControlPlaneClass", class_name, controllers={"profile": "Core"})
    # The Secret comes last, and all registrations wait for it.
    await keep_kubeconfig(field, class_name, config=shared)

    async def ready() -> set[str]:
        items = (await field.client.list(CONTROL_PLANE_REGISTRATIONS)).items
        return {item["metadata"]["name"] for item in items if item.get("status", {}).get("ready") is True}

    await field.eventually(ready, lambda found: found >= set(names), timeout=240.0)
    planes = {item["metadata"]["name"]: item for item in (await field.client.list(CONTROL_PLANES)).items}
    registrations = {
        item["metadata"]["name"]: item for item in (await field.client.list(CONTROL_PLANE_REGISTRATIONS)).items
    }
    for name in names:
        status = registrations[name]["status"]
        assert status["controlPlaneUID"] == planes[name]["metadata"]["uid"]
        assert status["resolvedEndpoint"] == f"{shared.server}/clusters/{name}/control-plane"
        assert status["resolvedControllersSecretRef"]["namespace"] == f"kplane-cp-{name}"
        assert status["controllers"] == {"profile": "Core"}


async def test_default_registration_keeps_changes_of_the_user(field: Any, adopt: Adopt) -> None:
    await field.create("ControlPlaneClass", "giving", defaultServices=["controllers"])
    control_plane = await adopt("given", classRef={"name": "giving"})
    await field.becomes("ControlPlaneRegistration", "given", "Resolved")
    registration = await field.get("ControlPlaneRegistration", "given")
    assert [owner["uid"] for owner in registration["metadata"]["ownerReferences"]] == [control_plane["metadata"]["uid"]]
    assert (registration["status"]["services"], registration["status"]["mode"]) == (["Controllers"], "Shared")

    spec = {"services": ["controllers", "Scheduler"], "mode": "Dedicated"}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "given", {"spec": spec})
    published = await field.eventually(lambda: status_of(field, "given"), lambda status: status["mode"] == "Dedicated")
    assert published["services"] == ["Controllers", "Scheduler"]
    # The operator reconciles class and control plane again after a change of the class: the user's spec stays.
    await field.client.patch(CONTROL_PLANE_CLASSES, "giving", {"spec": {"defaultServices": ["Scheduler"]}})
    await field.client.patch(CONTROL_PLANES, "given", {"spec": {"deletionPolicy": "Destroy"}})

    async def seen(kind: str = "ControlPlane", name: str = "given") -> bool:
        obj = await field.get(kind, name)
        return bool(obj["status"]["observedGeneration"] == obj["metadata"]["generation"])

    await field.eventually(seen)
    await field.eventually(lambda: seen("ControlPlaneClass", "giving"))
    assert (await field.get("ControlPlaneRegistration", "given"))["spec"] == {
        "controlPlaneRef": {"name": "given"},
        **spec,
    }

    await field.client.delete(CONTROL_PLANE_REGISTRATIONS, "given")
    recreated = await field.becomes("ControlPlaneRegistration", "given", "Resolved")
    assert recreated["metadata"]["uid"] != registration["metadata"]["uid"]
    assert recreated["spec"]["services"] == ["Scheduler"]


async def test_unknown_service_is_reported_in_condition_supported(field: Any, adopt: Adopt) -> None:
    await adopt("mixed")
    services = ["Controllers", "Workloads"]
    await field.create("ControlPlaneRegistration", "mixed", controlPlaneRef={"name": "mixed"}, services=services)
    await field.becomes("ControlPlaneRegistration", "mixed", "Resolved")
    conditions = (await status_of(field, "mixed"))["conditions"]
    by_type = {condition["type"]: (condition["status"], condition["message"]) for condition in conditions}
    assert by_type["Ready"] == ("True", "services can run")
    assert by_type["Supported"] == ("False", "nothing serves Workloads in spec.services; remove it")

    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "mixed", {"spec": {"services": []}})

    async def ready() -> tuple[str, ...]:
        conditions = (await status_of(field, "mixed"))["conditions"]
        return tuple(condition["message"] for condition in conditions if condition["type"] in {"Ready", "Supported"})

    message = "no service runs: name Controllers or Scheduler in spec.services"
    await field.eventually(ready, lambda found: found == (message,))


async def test_controllers_of_registration_override_those_of_the_class(field: Any, adopt: Adopt) -> None:
    controllers_of_class = {"explicit": ["*", "-job-controller"]}
    await field.create("ControlPlaneClass", "listing", controllers=controllers_of_class)
    await adopt("listed", classRef={"name": "listing"})
    spec = {"controlPlaneRef": {"name": "listed"}, "services": ["Controllers"]}
    await field.create("ControlPlaneRegistration", "listed", **spec)
    registration = await field.becomes("ControlPlaneRegistration", "listed", "Resolved")
    assert registration["status"]["controllers"] == controllers_of_class

    async def published() -> Any:
        return (await status_of(field, "listed")).get("controllers")

    change = {"spec": {"controllers": {"profile": "Core"}}}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "listed", change)
    await field.eventually(published, lambda controllers: controllers == {"profile": "Core"})
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "listed", {"spec": {"controllers": None}})
    await field.eventually(published, lambda controllers: controllers == controllers_of_class)
    await field.client.patch(CONTROL_PLANE_CLASSES, "listing", {"spec": {"controllers": None}})
    await field.eventually(published, lambda controllers: controllers is None)


async def test_deletion_of_control_plane_first_unresolves_registration(field: Any, adopt: Adopt) -> None:
    """The registration resolves to a new control plane of that name only once the new control plane is ready."""
    held = {"metadata": {"finalizers": ["test.kplane.dev/held"]}}
    await field.create("ControlPlaneRegistration", "told", controlPlaneRef={"name": "told"}, services=["Controllers"])
    first = await adopt("told", deletionPolicy="Destroy")
    before = (await field.becomes("ControlPlaneRegistration", "told", "Resolved"))["status"]
    assert before["controlPlaneUID"] == first["metadata"]["uid"]
    finalizers = (await field.get("ControlPlane", "told"))["metadata"]["finalizers"]
    held["metadata"]["finalizers"] += finalizers
    await field.client.patch(CONTROL_PLANES, "told", held)

    await field.client.delete(CONTROL_PLANES, "told")
    registration = await field.eventually(
        lambda: field.get("ControlPlaneRegistration", "told"), lambda found: not found["status"]["ready"]
    )
    after = registration["status"]
    assert {"resolvedEndpoint", "resolvedKubeconfigSecretRef", "controlPlaneUID"}.isdisjoint(after)
    assert await field.reason("ControlPlaneRegistration", "told") == "ControlPlaneNotReady"

    async def released() -> bool:
        control_plane = await field.get("ControlPlane", "told")
        return bool(control_plane["metadata"]["finalizers"] == ["test.kplane.dev/held"])

    await field.eventually(released, timeout=120.0)
    terminating = await field.get("ControlPlane", "told")
    assert int(registration["metadata"]["resourceVersion"]) < int(terminating["metadata"]["resourceVersion"])
    await field.client.patch(CONTROL_PLANES, "told", {"metadata": {"finalizers": None}})
    await field.gone(CONTROL_PLANES, "told")
    # The next control plane never is ready, because its endpoint is unreachable.
    await field.create("ControlPlaneEndpoint", "nowhere", endpoint="https://127.0.0.1:9")
    await field.create("ControlPlane", "told", endpointRef={"name": "nowhere"}, mode="Dedicated")

    async def said() -> str:
        conditions = (await status_of(field, "told"))["conditions"]
        return next(str(item["message"]) for item in conditions if item["type"] == "Ready")

    await field.eventually(said, lambda message: message.startswith("control plane told has not been ready yet"))
    assert (await status_of(field, "told"))["ready"] is False


async def test_operator_keeps_status_fields_that_mcm_owns(field: Any) -> None:
    """The operator applies its whole status by force, and takes over no fields of other managers."""
    await field.create("ControlPlaneRegistration", "shared", controlPlaneRef={"name": "absent"}, services=[])
    await field.becomes("ControlPlaneRegistration", "shared", "ControlPlaneNotFound")

    async def say(status: str, reason: str, **fields: Any) -> None:
        since = "2026-01-01T00:00:00Z"
        condition = {"type": "Running", "status": status, "reason": reason, "message": "", "lastTransitionTime": since}
        body = {"metadata": {"name": "shared"}, "status": {"conditions": [condition], **fields}}
        await field.client.apply(
            CONTROL_PLANE_REGISTRATIONS, body, subresource="status", field_manager="mcm", force=False
        )

    async def edit(services: list[str]) -> dict[str, Any]:
        """Change the services, and wait until the operator has written the status."""
        await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "shared", {"spec": {"services": services}})
        published: dict[str, Any] = await field.eventually(
            lambda: status_of(field, "shared"), lambda status: status.get("services", []) == services
        )
        return published

    instance = {"controlPlaneUID": "uid-1", "version": "v1.36.3"}
    await say("True", "InstanceRunning", instance=instance)
    published = await edit(["Controllers"])
    assert published["instance"] == instance
    assert await field.reason("ControlPlaneRegistration", "shared", "Running") == "InstanceRunning"
    # If the operator owned these fields too, mcm could neither remove them nor change them without force.
    await say("False", "Ended")
    assert "instance" not in await status_of(field, "shared")
    published = await edit(["Controllers", "Scheduler"])
    assert "instance" not in published
    assert await field.reason("ControlPlaneRegistration", "shared", "Running") == "Ended"
    with pytest.raises(Conflict):
        await say("False", "Ended", ready=True)
