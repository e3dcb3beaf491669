"""Tenant webhooks on all resources: the operator names them, renews credentials, and deletes webhooks on request."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.api.names import DELETE_ADMISSION_ANNOTATION, SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.hibernation import sleeper as sleepers
from kplane.controlplane_operator.kinds import CONTROL_PLANE_CLASSES, CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.provider import ApiError, Client, ClusterConfig
from kplane.provider.client.resources import (
    CONFIG_MAPS,
    MUTATING_ADMISSION_POLICIES,
    NAMESPACES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)

from .conftest import owner_of, reason_of
from .machine import own_address
from .sleeping import ON_DEMAND, annotate, now, wake

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]

_TARGET = "ValidatingWebhookConfiguration/deny-all"
_RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"], "scope": "*"}
_WEBHOOK = {
    "name": "deny.example.com",
    "rules": [_RULE],
    "clientConfig": {"url": "https://127.0.0.1:9/x"},
    "failurePolicy": "Fail",
    "sideEffects": "None",
    "timeoutSeconds": 2,
    "admissionReviewVersions": ["v1"],
}


async def deny_all(field: Any, config: ClusterConfig) -> None:
    """Create a failing webhook on all resources, and wait until it denies writes."""
    async with Client(config, field_manager="kplane") as tenant:
        await tenant.create(
            VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": "deny-all"}, "webhooks": [_WEBHOOK]}
        )

        await is_refused(field, tenant, by="deny")


async def is_refused(field: Any, tenant: Client, *, by: str) -> None:
    """Wait until the API server refuses a write with `by` in the message."""

    async def answer() -> str:
        try:
            await tenant.apply(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "default"}}, force=True)
        except ApiError as error:
            return str(error)
        return ""

    await field.eventually(answer, lambda found: by in found)


async def names_deletion(field: Any, name: str, *, target: str = _TARGET) -> None:
    """Request the deletion by annotation, and wait until the operator has removed the annotation."""
    annotations = {DELETE_ADMISSION_ANNOTATION: target}
    await field.client.patch(CONTROL_PLANES, name, {"metadata": {"annotations": annotations}})

    async def left() -> dict[str, str]:
        return (await field.get("ControlPlane", name))["metadata"].get("annotations") or {}

    await field.eventually(left, lambda found: DELETE_ADMISSION_ANNOTATION not in found)


async def has_configuration(config: ClusterConfig) -> bool:
    async with Client(config, field_manager="kplane") as tenant:
        return await tenant.exists(VALIDATING_WEBHOOK_CONFIGURATIONS, "deny-all")


def ready_message(control_plane: dict[str, Any]) -> str:
    return next(item["message"] for item in control_plane["status"]["conditions"] if item["type"] == "Ready")


async def delete(field: Any, name: str) -> None:
    await field.client.delete(CONTROL_PLANES, name)
    await field.gone(CONTROL_PLANES, name)


@pytest.mark.parametrize("mode", ["Virtual", pytest.param("Dedicated", marks=pytest.mark.slow)])
async def test_failing_webhook_is_named_and_deleted_by_annotation(field: Any, mode: str) -> None:
    name = f"denied-{mode.lower()}"
    await field.create("ControlPlaneClass", name, deletionPolicy="Destroy", auth={"lifetime": "10m"})
    await field.create("ControlPlane", name, mode=mode, classRef={"name": name})
    await field.becomes("ControlPlane", name, "Reconciled")
    before = await field.tenant(name)
    await deny_all(field, before)
    # The operator renews at once after a change of the lifetime.
    await field.client.patch(CONTROL_PLANE_CLASSES, name, {"spec": {"auth": {"lifetime": "20m"}}})
    control_plane = await field.becomes("ControlPlane", name, "WebhookRefused")
    message = ready_message(control_plane)
    assert "webhook 'deny.example.com' of ValidatingWebhookConfiguration deny-all (Fail, 2 s)" in message
    assert "`kubectl delete validatingwebhookconfiguration deny-all`" in message
    assert f"{DELETE_ADMISSION_ANNOTATION}={_TARGET}" in message
    assert "the published credentials end at" in message
    assert "the operator renews them before that" in message
    after = await field.eventually(lambda: field.tenant(name), lambda found: found.token != before.token)
    async with Client(after, field_manager="kplane") as renewed:
        await renewed.list(NAMESPACES)

    async def guards() -> str:
        return reason_of(await field.get("ControlPlane", name), "LeasesUnguarded")

    await field.eventually(guards, lambda found: found == "WebhooksOnLeases")
    await names_deletion(field, name)
    assert not await has_configuration(after)
    await field.becomes("ControlPlane", name, "Reconciled")
    await field.eventually(guards, lambda found: found == "")
    await delete(field, name)


async def test_plan_of_a_move_names_webhooks_on_leases_at_once(field: Any) -> None:
    """The inside is verified for minutes, so a new webhook would else be named long after the plan."""
    name = "planned-guards"
    await field.create("ControlPlane", name, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", name, "Reconciled")
    await deny_all(field, await field.tenant(name))
    spec = {"mode": "Dedicated", "migration": {"plan": True}}
    patched = await field.client.patch(CONTROL_PLANES, name, {"spec": spec})
    generation = patched["metadata"]["generation"]
    planned = await field.eventually(
        lambda: field.get("ControlPlane", name),
        lambda found: found["status"].get("observedGeneration") == generation,
    )
    assert reason_of(planned, "LeasesUnguarded") == "WebhooksOnLeases"
    await names_deletion(field, name)
    await delete(field, name)


async def test_owner_can_delete_a_failing_webhook_on_all_resources(field: Any) -> None:
    """Kubernetes never calls webhooks for writes of webhook configurations, despite matching rules."""
    await field.create("ControlPlane", "self-made", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "self-made", "Reconciled")
    config = await field.tenant("self-made")
    await deny_all(field, config)
    async with Client(config, field_manager="kplane") as tenant:
        await tenant.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, "deny-all")

        async def opened() -> bool:
            await tenant.apply(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "default"}}, force=True)
            return True

        await field.eventually(opened)
    await delete(field, "self-made")


async def test_webhook_message_of_adopted_control_plane_warns_of_expiry(field: Any, adopt: Adopt, tenant: Any) -> None:
    host = await owner_of(tenant.administrator)
    await field.create("ControlPlaneClass", "denied-adopted", auth={"lifetime": "1h"})
    await adopt("denied-adopted", at=host, classRef={"name": "denied-adopted"})
    await field.becomes("ControlPlane", "denied-adopted", "Reconciled")
    await deny_all(field, host)
    await field.client.patch(CONTROL_PLANE_CLASSES, "denied-adopted", {"spec": {"auth": {"lifetime": "2h"}}})
    message = ready_message(await field.becomes("ControlPlane", "denied-adopted", "WebhookRefused"))
    assert "of ValidatingWebhookConfiguration deny-all" in message
    assert "they cannot be renewed, and no client gets in then" in message
    await names_deletion(field, "denied-adopted")
    assert not await has_configuration(host)
    await field.becomes("ControlPlane", "denied-adopted", "Reconciled")
    await delete(field, "denied-adopted")
    await field.client.delete(CONTROL_PLANE_ENDPOINTS, "denied-adopted")


async def test_clone_with_failing_webhook_is_published_after_annotation(field: Any) -> None:
    await field.create("ControlPlane", "hooked-source", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "hooked-source", "Reconciled")
    await deny_all(field, await field.tenant("hooked-source"))
    source = {"controlPlaneRef": {"name": "hooked-source"}, "clone": True}
    await field.create("ControlPlane", "hooked-clone", deletionPolicy="Destroy", source=source)
    assert "deny-all" in ready_message(await field.becomes("ControlPlane", "hooked-clone", "WebhookRefused"))
    await names_deletion(field, "hooked-clone")
    await field.becomes("ControlPlane", "hooked-clone", "Reconciled")
    assert await has_configuration(await field.tenant("hooked-source"))
    assert not await has_configuration(await field.tenant("hooked-clone"))
    for name in ("hooked-clone", "hooked-source"):
        await delete(field, name)


async def test_failing_mutating_policy_is_named_and_deleted_by_annotation(field: Any) -> None:
    await field.create("ControlPlaneClass", "mutated", deletionPolicy="Destroy", auth={"lifetime": "10m"})
    await field.create("ControlPlane", "mutated", classRef={"name": "mutated"})
    await field.becomes("ControlPlane", "mutated", "Reconciled")
    rules = [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["CREATE", "UPDATE"]}]
    # No object of the test has this field, so the expression ends with an error.
    failing = 'Object{metadata: Object.metadata{labels: {"a": string(object.nosuch)}}}'
    broken = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": failing}}
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": rules},
        "mutations": [broken],
    }
    async with Client(await field.tenant("mutated"), field_manager="kplane") as tenant:
        await tenant.create(MUTATING_ADMISSION_POLICIES, {"metadata": {"name": "broken"}, "spec": spec})
        binding = {"metadata": {"name": "broken"}, "spec": {"policyName": "broken"}}
        await tenant.create("admissionregistration.k8s.io/v1/MutatingAdmissionPolicyBinding", binding)
        await is_refused(field, tenant, by="denied request")
    await field.client.patch(CONTROL_PLANE_CLASSES, "mutated", {"spec": {"auth": {"lifetime": "20m"}}})
    message = ready_message(await field.becomes("ControlPlane", "mutated", "WebhookRefused"))
    assert "MutatingAdmissionPolicy broken" in message
    await names_deletion(field, "mutated", target="MutatingAdmissionPolicy/broken")
    await field.becomes("ControlPlane", "mutated", "Reconciled")
    await delete(field, "mutated")


@pytest.mark.slow
async def test_control_plane_with_slow_webhook_wakes_and_names_webhook(
    field: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silent webhook times out after 10 s and is ignored: twice the timeout of a write of the operator."""
    monkeypatch.setattr(sleepers, "_HEARD_SECONDS", 0.1)
    silent = socket.create_server((own_address(), 0))
    host, port = silent.getsockname()
    allowed = {"cidr": f"{host}/32", "ports": [port]}
    await field.create("ControlPlaneClass", "slow-hook", **ON_DEMAND, allowedDestinations=[allowed])
    await field.create("ControlPlane", "slow-hook", classRef={"name": "slow-hook"})
    await field.becomes("ControlPlane", "slow-hook", "Hibernated")
    await wake(field, "slow-hook")
    config = await field.tenant("slow-hook")
    client_config = {"url": f"https://{host}:{port}/x"}
    rule = {**_RULE, "resources": ["serviceaccounts"]}
    webhook = {
        **_WEBHOOK,
        "rules": [rule],
        "clientConfig": client_config,
        "failurePolicy": "Ignore",
        "timeoutSeconds": 10,
    }
    async with Client(config, field_manager="kplane") as tenant:
        await tenant.create(VALIDATING_WEBHOOK_CONFIGURATIONS, {"metadata": {"name": "slow"}, "webhooks": [webhook]})
    await annotate(field, "slow-hook", **{WAKE_REQUESTED_ANNOTATION: None, SLEEP_REQUESTED_ANNOTATION: now()})
    await field.becomes("ControlPlane", "slow-hook", "Hibernated")
    # With other settings, the operator sets up the inside again.
    await field.client.patch(CONTROL_PLANE_CLASSES, "slow-hook", {"spec": {"auth": {"lifetime": "20m"}}})
    await annotate(field, "slow-hook", **{WAKE_REQUESTED_ANNOTATION: now()})
    awake = await field.becomes("ControlPlane", "slow-hook", "EndpointUnreachable")
    assert "of ValidatingWebhookConfiguration slow (Ignore, 10 s)" in ready_message(awake)
    assert awake["status"].get("hibernation") is None
    async with Client(config, field_manager="kplane") as tenant:
        await tenant.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, "slow")
    await field.becomes("ControlPlane", "slow-hook", "Reconciled")
    await delete(field, "slow-hook")
    silent.close()


async def test_malformed_delete_annotation_is_reported_as_not_supported(field: Any) -> None:
    await field.create("ControlPlane", "misnamed", deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "misnamed", "Reconciled")
    annotations = {DELETE_ADMISSION_ANNOTATION: "deny-all"}
    await field.client.patch(CONTROL_PLANES, "misnamed", {"metadata": {"annotations": annotations}})

    async def supported() -> str:
        return reason_of(await field.get("ControlPlane", "misnamed"), "Supported")

    await field.eventually(supported, lambda found: found == "NotSupported")
    await delete(field, "misnamed")
