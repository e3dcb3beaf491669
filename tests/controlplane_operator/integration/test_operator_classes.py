"""Settings and usage counts of classes, and settings of deleted classes, on a real management cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import CLUSTER_ROLES, EVENTS, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


Adopt = Callable[..., Awaitable[dict[str, Any]]]

_MANY = 60


async def condition(field: Any, kind: str, name: str, type: str) -> dict[str, Any] | None:  # noqa: A002
    conditions = (await field.get(kind, name)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == type), None)


async def warnings(field: Any, kind: str, name: str) -> set[str]:
    events = (await field.client.list(EVENTS, namespace="default")).items
    return {
        event["reason"]
        for event in events
        if event["type"] == "Warning"
        and (event["involvedObject"]["kind"], event["involvedObject"]["name"]) == (kind, name)
    }


async def delete(field: Any, name: str) -> None:
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


async def test_class_status_counts_control_planes_in_few_writes(field: Any) -> None:
    # The operator refuses these control planes before it creates objects for them.
    await field.create("ControlPlaneClass", "crowded", modesAllowed=["Dedicated"])

    async def count() -> int | None:
        used: int | None = (await field.get("ControlPlaneClass", "crowded")).get("status", {}).get("controlPlanes")
        return used

    await field.eventually(count, lambda used: used == 0)
    written: set[str] = set()

    async def follow() -> None:
        async with Client(field.client.config, field_manager="kplane") as client:
            selector = "metadata.name=crowded"
            async with client.watch(CONTROL_PLANE_CLASSES, resource_version=None, field_selector=selector) as watch:
                async for event in watch:
                    if event.type != "BOOKMARK":
                        written.add(event.object["metadata"]["resourceVersion"])

    following = asyncio.create_task(follow())
    try:
        await field.eventually(lambda: len(written), lambda seen: seen == 1)
        loop = asyncio.get_running_loop()
        start = loop.time()
        names = [f"crowd-{number}" for number in range(_MANY)]
        await asyncio.gather(*(field.create("ControlPlane", name, classRef={"name": "crowded"}) for name in names))
        await field.eventually(count, lambda used: used == _MANY, timeout=120.0)
        await asyncio.gather(*(field.client.delete(CONTROL_PLANES, name) for name in names))
        await field.eventually(count, lambda used: used == 0, timeout=120.0)
    finally:
        following.cancel()
        await asyncio.wait([following])
    # At most a write a second, plus the first write.
    assert len(written) <= (loop.time() - start) + 2


async def test_class_reports_unknown_addons_and_roles(field: Any, adopt: Adopt) -> None:
    await field.create("ControlPlaneClass", "wishful", addons=["starter", "no-such-bundle"])
    await field.becomes("ControlPlaneClass", "wishful", "AddonUnknown")
    await field.client.patch(CONTROL_PLANE_CLASSES, "wishful", {"spec": {"addons": ["starter"]}})
    await field.becomes("ControlPlaneClass", "wishful", "Valid")

    await field.create("ControlPlaneClass", "roleless", auth={"defaultRole": "no-such-role"})
    await adopt("roleless", classRef={"name": "roleless"})
    await field.becomes("ControlPlane", "roleless", "RoleNotFound")

    async def told() -> str:
        supported = await condition(field, "ControlPlaneClass", "roleless", "Supported")
        return supported["message"] if supported is not None else ""

    message = await field.eventually(told, lambda text: text != "")
    assert "no-such-role" in message
    assert "control plane roleless" in message
    auth = {"defaultRole": "system:discovery"}
    await field.client.patch(CONTROL_PLANE_CLASSES, "roleless", {"spec": {"auth": auth}})
    await field.becomes("ControlPlane", "roleless", "Reconciled")
    await field.eventually(told, lambda text: text == "")

    # A published control plane keeps its former role, and its credentials are renewed.
    published = (await field.get("ControlPlane", "roleless"))["status"]["credentialsExpireAt"]
    auth = {"defaultRole": "no-such-role", "lifetime": "96h"}
    await field.client.patch(CONTROL_PLANE_CLASSES, "roleless", {"spec": {"auth": auth}})
    await field.becomes("ControlPlane", "roleless", "RoleNotFound")
    ready = await condition(field, "ControlPlane", "roleless", "Ready")
    assert ready is not None
    assert "keeps ClusterRole system:discovery until then" in ready["message"]

    async def expiry() -> str:
        return str((await field.get("ControlPlane", "roleless"))["status"]["credentialsExpireAt"])

    await field.eventually(expiry, lambda found: found > published)
    async with Client(await field.tenant("roleless", secret="controllersSecretRef"), field_manager="kplane") as inside:
        body = {"metadata": {"name": "no-such-role"}, "rules": []}
        await inside.create(CLUSTER_ROLES, body)
        try:
            await field.becomes("ControlPlane", "roleless", "Reconciled")
        finally:
            await inside.delete(CLUSTER_ROLES, "no-such-role")


async def test_settings_of_a_deleted_class_stay_in_force(field: Any) -> None:
    auth = {"model": "x509", "defaultRole": "system:discovery", "lifetime": "2h"}
    await field.create("ControlPlaneClass", "passing", deletionPolicy="Destroy", auth=auth)
    await field.create("ControlPlane", "classless", classRef={"name": "passing"})
    before = await field.becomes("ControlPlane", "classless", "Reconciled")
    await field.client.delete(CONTROL_PLANE_CLASSES, "passing")

    async def lost() -> dict[str, Any] | None:
        return await condition(field, "ControlPlane", "classless", "ClassFound")

    class_found = await field.eventually(lost, lambda told: told is not None)
    assert (class_found["status"], class_found["reason"]) == ("False", "ClassNotFound")
    for kind, name, reason in (
        ("ControlPlane", "classless", "ClassNotFound"),
        ("ControlPlaneClass", "passing", "DeletedInUse"),
    ):

        async def said(kind: str = kind, name: str = name) -> set[str]:
            return await warnings(field, kind, name)

        await field.eventually(said, lambda reasons, reason=reason: reason in reasons)
    after = await field.get("ControlPlane", "classless")
    for published in ("phase", "endpoint", "kubeconfigSecretRef", "version", "deletionPolicy", "rememberedClass"):
        assert after["status"][published] == before["status"][published]

    # Credentials are issued as before.
    reference = after["status"]["kubeconfigSecretRef"]
    former = await field.tenant("classless")
    await field.client.delete(SECRETS, reference["name"], namespace=reference["namespace"])

    async def issued() -> Any:
        return await field.tenant("classless")

    renewed = await field.eventually(issued, lambda config: config.client_key != former.client_key)
    assert renewed.client_certificate is not None
    recovered = await field.becomes("ControlPlane", "classless", "Reconciled")
    assert recovered["status"]["credentialsExpireAt"] >= before["status"]["credentialsExpireAt"]

    await delete(field, "classless")
    assert int(await field.handle.tenants_etcd.count("/clusters/classless/")) == 0


@pytest.mark.slow
async def test_policy_retain_survives_deletion_and_change_of_the_class(field: Any) -> None:
    await field.create("ControlPlaneClass", "keeping", deletionPolicy="Retain")
    await field.create("ControlPlane", "keeper", classRef={"name": "keeping"})
    await field.becomes("ControlPlane", "keeper", "Reconciled")
    await field.client.delete(CONTROL_PLANE_CLASSES, "keeping")
    await field.eventually(lambda: condition(field, "ControlPlane", "keeper", "ClassFound"))
    await field.client.delete(CONTROL_PLANES, "keeper")
    with contextlib.suppress(NotFound):
        # The control plane may be terminating, or gone already.
        await field.create("ControlPlaneClass", "keeping", deletionPolicy="Destroy")
    await field.gone(CONTROL_PLANES, "keeper")
    assert int(await field.handle.tenants_etcd.count("/clusters/keeper/")) > 100


@pytest.mark.slow
async def test_changed_class_policy_applies_once_published_in_status(field: Any) -> None:
    await field.create("ControlPlaneClass", "turning", deletionPolicy="Retain")
    await field.create("ControlPlane", "turned", classRef={"name": "turning"})
    await field.becomes("ControlPlane", "turned", "Reconciled")
    await field.client.patch(CONTROL_PLANE_CLASSES, "turning", {"spec": {"deletionPolicy": "Destroy"}})

    async def policy() -> str:
        return str((await field.get("ControlPlane", "turned"))["status"]["deletionPolicy"])

    await field.eventually(policy, lambda found: found == "Destroy")
    await delete(field, "turned")
    assert int(await field.handle.tenants_etcd.count("/clusters/turned/")) == 0
