"""Registrations: resolved in any order, told at once, and theirs who made them."""

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
    found: dict[str, Any] = (await field.get("ControlPlaneRegistration", name)).get("status", {})
    return found


@pytest.mark.timeout(420)
@pytest.mark.parametrize("many", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_registrations_from_before_everything_they_need_resolve(
    field: Any, shared: ClusterConfig, many: int
) -> None:
    """The Go operator leaves 137 of 200 unresolved for good, because it looks at a registration only once."""
    chosen = f"of-{many}"
    names = [f"of-{many}-{number}" for number in range(many)]
    secret = {"name": chosen, "namespace": "default"}

    async def register(name: str) -> None:
        await field.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])

    async def control_plane(name: str) -> None:
        await field.create("ControlPlane", name, classRef={"name": chosen}, endpointRef={"name": name})

    async def endpoint(name: str) -> None:
        await field.create("ControlPlaneEndpoint", name, endpoint=shared.server, credentialsSecretRef=secret)

    await asyncio.gather(*map(register, names))
    await asyncio.gather(*map(control_plane, names))
    await asyncio.gather(*map(endpoint, names))
    await field.create("ControlPlaneClass", chosen, controllers={"profile": "Core"})
    # The last thing of all is what every one of them waits for.
    await keep_kubeconfig(field, chosen, config=shared)

    async def ready() -> set[str]:
        found = (await field.client.list(CONTROL_PLANE_REGISTRATIONS)).items
        return {item["metadata"]["name"] for item in found if item.get("status", {}).get("ready") is True}

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


async def test_a_default_registration_is_its_users_once_it_is_there(field: Any, adopt: Adopt) -> None:
    await field.create("ControlPlaneClass", "giving", defaultServices=["controllers"])
    made = await adopt("given", classRef={"name": "giving"})
    await field.becomes("ControlPlaneRegistration", "given", "Resolved")
    found = await field.get("ControlPlaneRegistration", "given")
    assert [owner["uid"] for owner in found["metadata"]["ownerReferences"]] == [made["metadata"]["uid"]]
    assert (found["status"]["services"], found["status"]["mode"]) == (["Controllers"], "Shared")

    spec = {"services": ["controllers", "Scheduler"], "mode": "Dedicated"}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "given", {"spec": spec})
    published = await field.eventually(lambda: status_of(field, "given"), lambda status: status["mode"] == "Dedicated")
    assert published["services"] == ["Controllers", "Scheduler"]
    # Another look at the control plane, after which the class says something else: the user's words stay.
    await field.client.patch(CONTROL_PLANE_CLASSES, "giving", {"spec": {"defaultServices": ["Scheduler"]}})
    await field.client.patch(CONTROL_PLANES, "given", {"spec": {"deletionPolicy": "Destroy"}})

    async def seen(kind: str = "ControlPlane", name: str = "given") -> bool:
        found = await field.get(kind, name)
        return bool(found["status"]["observedGeneration"] == found["metadata"]["generation"])

    await field.eventually(seen)
    await field.eventually(lambda: seen("ControlPlaneClass", "giving"))
    assert (await field.get("ControlPlaneRegistration", "given"))["spec"] == {
        "controlPlaneRef": {"name": "given"},
        **spec,
    }

    await field.client.delete(CONTROL_PLANE_REGISTRATIONS, "given")
    again = await field.becomes("ControlPlaneRegistration", "given", "Resolved")
    assert again["metadata"]["uid"] != found["metadata"]["uid"]
    assert again["spec"]["services"] == ["Scheduler"]


async def test_a_service_that_nobody_serves_is_told(field: Any, adopt: Adopt) -> None:
    await adopt("mixed")
    services = ["Controllers", "Workloads"]
    await field.create("ControlPlaneRegistration", "mixed", controlPlaneRef={"name": "mixed"}, services=services)
    await field.becomes("ControlPlaneRegistration", "mixed", "Resolved")
    conditions = (await status_of(field, "mixed"))["conditions"]
    told = {each["type"]: (each["status"], each["message"]) for each in conditions}
    assert told["Ready"] == ("True", "services can run")
    assert told["Supported"] == ("False", "nothing serves Workloads in spec.services; remove it")

    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "mixed", {"spec": {"services": []}})

    async def ready() -> tuple[str, ...]:
        conditions = (await status_of(field, "mixed"))["conditions"]
        return tuple(each["message"] for each in conditions if each["type"] in {"Ready", "Supported"})

    message = "no service runs: name Controllers or Scheduler in spec.services"
    await field.eventually(ready, lambda found: found == (message,))


async def test_controllers_are_the_registrations_else_the_classs_else_nobodys(field: Any, adopt: Adopt) -> None:
    listed = {"explicit": ["*", "-job-controller"]}
    await field.create("ControlPlaneClass", "listing", controllers=listed)
    await adopt("listed", classRef={"name": "listing"})
    asked = {"controlPlaneRef": {"name": "listed"}, "services": ["Controllers"]}
    await field.create("ControlPlaneRegistration", "listed", **asked)
    found = await field.becomes("ControlPlaneRegistration", "listed", "Resolved")
    assert found["status"]["controllers"] == listed

    async def published() -> Any:
        return (await status_of(field, "listed")).get("controllers")

    own = {"spec": {"controllers": {"profile": "Core"}}}
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "listed", own)
    await field.eventually(published, lambda controllers: controllers == {"profile": "Core"})
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "listed", {"spec": {"controllers": None}})
    await field.eventually(published, lambda controllers: controllers == listed)
    await field.client.patch(CONTROL_PLANE_CLASSES, "listing", {"spec": {"controllers": None}})
    await field.eventually(published, lambda controllers: controllers is None)


async def test_a_deletion_is_told_before_anything_else_happens(field: Any, adopt: Adopt) -> None:
    """And a control plane of the same name that comes next is another one, until it is ready itself."""
    held = {"metadata": {"finalizers": ["test.kplane.dev/held"]}}
    await field.create("ControlPlaneRegistration", "told", controlPlaneRef={"name": "told"}, services=["Controllers"])
    first = await adopt("told", deletionPolicy="Destroy")
    before = (await field.becomes("ControlPlaneRegistration", "told", "Resolved"))["status"]
    assert before["controlPlaneUID"] == first["metadata"]["uid"]
    finalizers = (await field.get("ControlPlane", "told"))["metadata"]["finalizers"]
    held["metadata"]["finalizers"] += finalizers
    await field.client.patch(CONTROL_PLANES, "told", held)

    await field.client.delete(CONTROL_PLANES, "told")
    told = await field.eventually(
        lambda: field.get("ControlPlaneRegistration", "told"), lambda found: not found["status"]["ready"]
    )
    after = told["status"]
    assert {"resolvedEndpoint", "resolvedKubeconfigSecretRef", "controlPlaneUID"}.isdisjoint(after)
    assert await field.reason("ControlPlaneRegistration", "told") == "ControlPlaneNotReady"

    async def released() -> bool:
        found = await field.get("ControlPlane", "told")
        return bool(found["metadata"]["finalizers"] == ["test.kplane.dev/held"])

    await field.eventually(released, timeout=120.0)
    ended = await field.get("ControlPlane", "told")
    assert int(told["metadata"]["resourceVersion"]) < int(ended["metadata"]["resourceVersion"])
    await field.client.patch(CONTROL_PLANES, "told", {"metadata": {"finalizers": None}})
    await field.gone(CONTROL_PLANES, "told")
    # The next one has an endpoint that nobody answers at, so that it never is ready.
    await field.create("ControlPlaneEndpoint", "nowhere", endpoint="https://127.0.0.1:9")
    await field.create("ControlPlane", "told", endpointRef={"name": "nowhere"}, mode="Dedicated")

    async def said() -> str:
        conditions = (await status_of(field, "told"))["conditions"]
        return next(str(item["message"]) for item in conditions if item["type"] == "Ready")

    await field.eventually(said, lambda message: message.startswith("control plane told has not been ready yet"))
    assert (await status_of(field, "told"))["ready"] is False


async def test_what_mcm_says_of_its_instance_stays_mcms(field: Any) -> None:
    """The operator publishes the whole status, by force, and takes nothing over that it did not write."""
    await field.create("ControlPlaneRegistration", "shared", controlPlaneRef={"name": "absent"}, services=[])
    await field.becomes("ControlPlaneRegistration", "shared", "ControlPlaneNotFound")

    async def say(status: str, reason: str, **fields: Any) -> None:
        since = "2026-01-01T00:00:00Z"
        told = {"type": "Running", "status": status, "reason": reason, "message": "", "lastTransitionTime": since}
        body = {"metadata": {"name": "shared"}, "status": {"conditions": [told], **fields}}
        await field.client.apply(
            CONTROL_PLANE_REGISTRATIONS, body, subresource="status", field_manager="mcm", force=False
        )

    async def edit(services: list[str]) -> dict[str, Any]:
        """Have the operator write its status anew."""
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
    # Were one of them the operator's too, it could neither be taken back, nor changed without force.
    await say("False", "Ended")
    assert "instance" not in await status_of(field, "shared")
    published = await edit(["Controllers", "Scheduler"])
    assert "instance" not in published
    assert await field.reason("ControlPlaneRegistration", "shared", "Running") == "Ended"
    with pytest.raises(Conflict):
        await say("False", "Ended", ready=True)
