"""The operator maintains the published objects of a running control plane while its surroundings are invalid."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api.names import CONTROL_PLANE_LABEL, PAUSED_ANNOTATION
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.provider import Invalid, NotFound
from kplane.provider.client.resources import EVENTS, NAMESPACES, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def comes_back(field: Any, name: str) -> None:
    """Delete the Secret with the kubeconfig, and wait until the operator has restored it."""
    reference = (await field.get("ControlPlane", name))["status"]["kubeconfigSecretRef"]
    await field.client.delete(SECRETS, reference["name"], namespace=reference["namespace"])

    async def back() -> bool:
        try:
            await field.client.get(SECRETS, reference["name"], namespace=reference["namespace"])
        except NotFound:
            return False
        return True

    await field.eventually(back)


@pytest.mark.usefixtures("unguarded")
async def test_kubeconfig_is_restored_while_class_or_endpoint_is_invalid(field: Any) -> None:
    await field.create("ControlPlaneClass", "narrow", deletionPolicy="Destroy")
    await field.create("ControlPlane", "upheld", classRef={"name": "narrow"})
    await field.becomes("ControlPlane", "upheld", "Reconciled")

    async def class_found() -> str:
        return str(await field.reason("ControlPlane", "upheld", "ClassFound"))

    # Its class no longer allows the mode, or the class in the spec does not exist.
    await field.client.patch(CONTROL_PLANE_CLASSES, "narrow", {"spec": {"modesAllowed": ["Dedicated"]}})
    await field.eventually(class_found, lambda reason: reason == "ModeNotAllowed")
    await comes_back(field, "upheld")
    await field.client.patch(CONTROL_PLANES, "upheld", {"spec": {"classRef": {"name": "mistyped"}}})
    await field.eventually(class_found, lambda reason: reason == "ClassNotFound")
    await comes_back(field, "upheld")
    assert await field.reason("ControlPlane", "upheld") == "Reconciled"
    await field.client.patch(CONTROL_PLANE_CLASSES, "narrow", {"spec": {"modesAllowed": []}})
    await field.client.patch(CONTROL_PLANES, "upheld", {"spec": {"classRef": {"name": "narrow"}}})
    await field.eventually(class_found, lambda reason: reason == "")

    # Its namespace has lost the label of the control plane.
    unlabelled = {"metadata": {"labels": {CONTROL_PLANE_LABEL: None}}}
    await field.client.patch(NAMESPACES, "kplane-cp-upheld", unlabelled)

    async def label() -> Any:
        return (await field.client.get(NAMESPACES, "kplane-cp-upheld"))["metadata"]["labels"].get(CONTROL_PLANE_LABEL)

    await field.eventually(label, lambda found: found == "upheld")

    # The endpoint that kplane created has lost its owner reference.
    await field.client.patch(CONTROL_PLANE_ENDPOINTS, "upheld", {"metadata": {"ownerReferences": None}})
    await field.becomes("ControlPlane", "upheld", "EndpointInvalid")
    await comes_back(field, "upheld")
    await field.client.delete(CONTROL_PLANE_ENDPOINTS, "upheld")
    await field.becomes("ControlPlane", "upheld", "Reconciled")

    # The CRD refuses a change to another API server.
    with pytest.raises(Invalid, match="must not be added or removed"):
        await field.client.patch(CONTROL_PLANES, "upheld", {"spec": {"endpointRef": {"name": "other"}}})


@pytest.mark.slow
async def test_retain_set_in_class_during_pause_applies_to_deletion(field: Any) -> None:
    await field.create("ControlPlaneClass", "turned", deletionPolicy="Destroy")
    await field.create("ControlPlane", "kept", classRef={"name": "turned"})
    await field.becomes("ControlPlane", "kept", "Reconciled")
    pause = {"metadata": {"annotations": {PAUSED_ANNOTATION: "true"}}}
    await field.client.patch(CONTROL_PLANES, "kept", pause)
    await field.client.delete(CONTROL_PLANES, "kept")

    async def phase() -> str:
        return str((await field.get("ControlPlane", "kept"))["status"]["phase"])

    await field.eventually(phase, lambda found: found == "Terminating")
    retain = {"spec": {"deletionPolicy": "Retain", "modesAllowed": ["Dedicated"]}}
    await field.client.patch(CONTROL_PLANE_CLASSES, "turned", retain)
    await field.client.patch(CONTROL_PLANES, "kept", {"metadata": {"annotations": {PAUSED_ANNOTATION: None}}})
    await field.gone(CONTROL_PLANES, "kept")
    assert int(await field.handle.tenants_etcd.count("/clusters/kept/")) > 0

    async def unclear() -> bool:
        events = (await field.client.list(EVENTS, namespace="default")).items
        return any((event["reason"], event["involvedObject"]["name"]) == ("PolicyUnclear", "kept") for event in events)

    await field.eventually(unclear)
    await field.client.delete(NAMESPACES, "kplane-cp-kept")
    async with field.handle.tenants_etcd.client() as etcd:
        await etcd.delete_prefix("/clusters/kept/")
