"""Add-ons of classes: what an author of one sees in the management cluster, and what arrives in control planes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANES
from provider import CLUSTER_ROLE_BINDINGS, CONFIG_MAPS, SECRETS, SERVICE_ACCOUNTS, Client, ClusterConfig, NotFound

pytestmark = pytest.mark.integration

LABEL = {"controlplane.kplane.dev/addon": "true"}


async def bundle(field: Any, name: str, text: str) -> None:
    metadata = {"name": name, "namespace": "kplane-system", "labels": LABEL}
    await field.client.apply(CONFIG_MAPS, {"metadata": metadata, "data": {"manifests.yaml": text}})


def greeting(value: str) -> str:
    return json.dumps(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "greeting"}, "data": {"value": value}}
    )


async def condition(field: Any, kind: str, name: str, type_: str) -> dict[str, Any]:
    conditions = (await field.get(kind, name)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == type_), {})


@pytest.fixture
async def bundles(field: Any) -> Any:
    yield field
    for item in (await field.client.list(CONFIG_MAPS, namespace="kplane-system")).items:
        if (item["metadata"].get("labels") or {}) == LABEL:
            await field.client.delete(CONFIG_MAPS, item["metadata"]["name"], namespace="kplane-system")


async def test_addons_come_change_and_go_and_their_trouble_is_theirs_alone(bundles: Any) -> None:
    field = bundles
    await field.create("ControlPlaneClass", "equipped", addons=["starter", "hello", "kubeadm-join"])
    await field.create("ControlPlane", "eq", classRef={"name": "equipped"}, deletionPolicy="Destroy")

    async def addons() -> dict[str, Any]:
        return await condition(field, "ControlPlane", "eq", "AddonsReady")

    async def known() -> str:
        return str(await field.reason("ControlPlaneClass", "equipped"))

    # The bundle is missing: the control plane is ready all the same, and the other add-ons are installed.
    await field.becomes("ControlPlane", "eq", "Reconciled")
    await field.eventually(known, lambda reason: reason == "AddonUnknown")
    told = await field.eventually(addons, lambda found: found.get("reason") == "AddonUnknown")
    assert "kplane-system/hello" in told["message"]
    config = await field.tenant("eq")
    async with Client(config) as tenant:
        info = (await tenant.get(CONFIG_MAPS, "control-plane-info", namespace="kplane-system"))["data"]
        assert info["endpoint"] == config.server
        assert info["ca.crt"].encode() == config.ca_data
        assert "kubeconfig" in (await tenant.get(CONFIG_MAPS, "cluster-info", namespace="kube-public"))["data"]

        async def value() -> str | None:
            try:
                return str((await tenant.get(CONFIG_MAPS, "greeting", namespace="default"))["data"]["value"])
            except NotFound:
                return None

        await bundle(field, "hello", greeting("1"))
        assert await field.eventually(value, lambda found: found == "1")
        await field.eventually(addons, lambda found: found["status"] == "True")
        await field.eventually(known, lambda reason: reason == "Valid")

        await bundle(field, "hello", greeting("2"))
        assert await field.eventually(value, lambda found: found == "2")

        await bundle(field, "hello", "kind: [")
        found = await field.eventually(addons, lambda found: found["status"] == "False")
        assert found["reason"] == "BundleInvalid"
        await field.eventually(known, lambda reason: reason == "BundleInvalid")
        assert await value() == "2"
        assert await field.reason("ControlPlane", "eq") == "Reconciled"

        tokens = [
            s for s in (await tenant.list(SECRETS, namespace="kube-system")).items if "token" in s["metadata"]["name"]
        ]
        secret = base64.b64decode(tokens[0]["data"]["token-secret"]).decode()
        assert secret not in json.dumps(await field.get("ControlPlane", "eq"))
        await field.client.patch(CONTROL_PLANE_CLASSES, "equipped", {"spec": {"addons": None}})
        await field.eventually(addons, lambda found: found == {})
        assert await value() is None
        assert (await tenant.list(SECRETS, namespace="kube-system")).items == []
        kept = {item["metadata"]["name"] for item in (await tenant.list(CONFIG_MAPS, namespace="kplane-system")).items}
        assert kept <= {"kube-root-ca.crt"}


async def owner(config: ClusterConfig) -> ClusterConfig:
    """Whoever owns the adopted API server: no identity of kplane's, so that it is not revoked either."""
    async with Client(config) as client:
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "owner", "namespace": "default"}})
        body = {
            "metadata": {"name": "owner"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "owner", "namespace": "default"}],
        }
        await client.create(CLUSTER_ROLE_BINDINGS, body)
        path = "/api/v1/namespaces/default/serviceaccounts/owner/token"
        issued = await client.request("POST", path, body={"spec": {}})
    return replace(config, token=issued["status"]["token"])


async def test_external_control_planes_get_addons_and_keep_them_without_tokens_when_they_are_let_go(
    bundles: Any,
) -> None:
    field = bundles
    await field.create("ControlPlane", "host", mode="Dedicated", deletionPolicy="Destroy")
    host = await field.becomes("ControlPlane", "host", "Reconciled")
    config = await owner(await field.tenant("host"))
    kubeconfig = base64.b64encode(json.dumps(config.to_kubeconfig()).encode()).decode()
    metadata = {"name": "host-credentials", "namespace": "default"}
    labels = {"controlplane.kplane.dev/allow-endpoint": "true"}
    await field.client.apply(SECRETS, {"metadata": {**metadata, "labels": labels}, "data": {"kubeconfig": kubeconfig}})
    await field.create(
        "ControlPlaneEndpoint", "ext", endpoint=host["status"]["endpoint"], credentialsSecretRef=metadata
    )
    await bundle(field, "hello", greeting("1"))
    await field.create("ControlPlaneClass", "equipped", addons=["hello", "kubeadm-join"])
    await field.create(
        "ControlPlane", "ext", mode="Dedicated", classRef={"name": "equipped"}, endpointRef={"name": "ext"}
    )

    async def addons() -> dict[str, Any]:
        return await condition(field, "ControlPlane", "ext", "AddonsReady")

    await field.eventually(addons, lambda found: found.get("status") == "True", timeout=120.0)
    async with Client(config) as tenant:
        assert (await tenant.get(CONFIG_MAPS, "greeting", namespace="default"))["data"] == {"value": "1"}
        assert len((await tenant.list(SECRETS, namespace="kube-system")).items) == 1
        # A class that is gone says nothing of what is to be removed.
        await field.client.delete(CONTROL_PLANE_CLASSES, "equipped")
        lost = lambda found: found.get("reason") == "ClassNotFound"  # noqa: E731
        await field.eventually(lambda: condition(field, "ControlPlane", "ext", "ClassFound"), lost)
        assert (await tenant.get(CONFIG_MAPS, "greeting", namespace="default"))["data"] == {"value": "1"}
        await field.client.delete(CONTROL_PLANES, "ext")
        await field.gone(CONTROL_PLANES, "ext")
        assert (await tenant.get(CONFIG_MAPS, "greeting", namespace="default"))["data"] == {"value": "1"}
        assert (await tenant.list(SECRETS, namespace="kube-system")).items == []
