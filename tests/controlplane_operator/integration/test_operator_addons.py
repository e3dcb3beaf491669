"""Add-ons of classes: conditions in the management cluster, and objects in control planes."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio

from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from kplane.provider import Client, NotFound
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS

from .conftest import owner_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]

LABEL = {"controlplane.kplane.dev/addon": "true"}


async def bundle(field: Any, name: str, text: str) -> None:
    metadata = {"name": name, "namespace": "kplane-system", "labels": LABEL}
    await field.client.apply(CONFIG_MAPS, {"metadata": metadata, "data": {"manifests.yaml": text}}, force=True)


def greeting(value: str) -> str:
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "greeting"}, "data": {"value": value}}
    )


async def condition(field: Any, kind: str, name: str, type_: str) -> dict[str, Any]:
    conditions = (await field.get(kind, name)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == type_), {})


@pytest_asyncio.fixture(loop_scope="module")
async def bundles(field: Any) -> Any:
    yield field
    for item in (await field.client.list(CONFIG_MAPS, namespace="kplane-system")).items:
        if (item["metadata"].get("labels") or {}) == LABEL:
            await field.client.delete(CONFIG_MAPS, item["metadata"]["name"], namespace="kplane-system")


async def test_addons_follow_class_and_failures_keep_control_plane_ready(
    bundles: Any, adopt: Adopt, tenant: Any
) -> None:
    field = bundles
    await field.create("ControlPlaneClass", "equipped", addons=["starter", "hello", "kubeadm-join"])
    await adopt("eq", at=tenant.administrator, classRef={"name": "equipped"})

    async def addons() -> dict[str, Any]:
        return await condition(field, "ControlPlane", "eq", "AddonsReady")

    async def known() -> str:
        return str(await field.reason("ControlPlaneClass", "equipped"))

    # Without the bundle of add-on hello, the control plane is ready and has the other add-ons.
    await field.becomes("ControlPlane", "eq", "Reconciled")
    await field.eventually(known, lambda reason: reason == "AddonUnknown")
    unknown = await field.eventually(addons, lambda found: found.get("reason") == "AddonUnknown")
    assert "kplane-system/hello" in unknown["message"]
    config = await field.tenant("eq")
    async with Client(config, field_manager="kplane") as client:
        info = (await client.get(CONFIG_MAPS, "control-plane-info", namespace="kplane-system"))["data"]
        assert info["endpoint"] == config.server
        assert info["ca.crt"].encode() == config.ca_data
        assert "kubeconfig" in (await client.get(CONFIG_MAPS, "cluster-info", namespace="kube-public"))["data"]

        async def value() -> str | None:
            try:
                return str((await client.get(CONFIG_MAPS, "greeting", namespace="default"))["data"]["value"])
            except NotFound:
                return None

        await bundle(field, "hello", greeting("1"))
        assert await field.eventually(value, lambda found: found == "1")
        await field.eventually(addons, lambda found: found["status"] == "True")
        await field.eventually(known, lambda reason: reason == "Valid")

        await bundle(field, "hello", greeting("2"))
        assert await field.eventually(value, lambda found: found == "2")

        await bundle(field, "hello", "kind: [")
        invalid = await field.eventually(addons, lambda found: found["status"] == "False")
        assert invalid["reason"] == "BundleInvalid"
        await field.eventually(known, lambda reason: reason == "BundleInvalid")
        assert await value() == "2"
        assert await field.reason("ControlPlane", "eq") == "Reconciled"

        tokens = [
            s for s in (await client.list(SECRETS, namespace="kube-system")).items if "token" in s["metadata"]["name"]
        ]
        secret = base64.b64decode(tokens[0]["data"]["token-secret"]).decode()
        assert secret not in json.dumps(await field.get("ControlPlane", "eq"))
        await field.client.patch(CONTROL_PLANE_CLASSES, "equipped", {"spec": {"addons": None}})
        await field.eventually(addons, lambda found: found == {})
        assert await value() is None
        assert (await client.list(SECRETS, namespace="kube-system")).items == []
        names = {item["metadata"]["name"] for item in (await client.list(CONFIG_MAPS, namespace="kplane-system")).items}
        assert names <= {"kube-root-ca.crt"}


async def test_deleted_adopted_control_plane_keeps_addons_but_no_tokens(
    bundles: Any, adopt: Adopt, tenant: Any
) -> None:
    field = bundles
    config = await owner_of(tenant.administrator)
    await bundle(field, "hello", greeting("1"))
    await field.create("ControlPlaneClass", "equipped-ext", addons=["hello", "kubeadm-join"])
    await adopt("ext", at=config, classRef={"name": "equipped-ext"})

    async def addons() -> dict[str, Any]:
        return await condition(field, "ControlPlane", "ext", "AddonsReady")

    await field.eventually(addons, lambda found: found.get("status") == "True", timeout=120.0)
    async with Client(config, field_manager="kplane") as client:
        assert (await client.get(CONFIG_MAPS, "greeting", namespace="default"))["data"] == {"value": "1"}
        assert len((await client.list(SECRETS, namespace="kube-system")).items) == 1
        # The deletion of the class removes no add-on.
        await field.client.delete(CONTROL_PLANE_CLASSES, "equipped-ext")
        lost = lambda found: found.get("reason") == "ClassNotFound"  # noqa: E731
        await field.eventually(lambda: condition(field, "ControlPlane", "ext", "ClassFound"), lost)
        assert (await client.get(CONFIG_MAPS, "greeting", namespace="default"))["data"] == {"value": "1"}
        await field.client.delete(CONTROL_PLANES, "ext")
        await field.gone(CONTROL_PLANES, "ext")
        assert (await client.get(CONFIG_MAPS, "greeting", namespace="default"))["data"] == {"value": "1"}
        assert (await client.list(SECRETS, namespace="kube-system")).items == []
