"""Webhooks and policies of tenants: named in messages, and deleted if an annotation names the configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kplane.api import ControlPlane, ControlPlaneClass, find_condition
from kplane.api.conditions import LEASES_UNGUARDED
from kplane.api.names import DELETE_ADMISSION_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.kinds import CONTROL_PLANES
from kplane.controlplane_operator.status.conditions import with_lease_guards
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.tenant.admission import (
    delete_named,
    is_deletion_named,
    lease_guards,
    refused_deletion,
    tenant_errors,
    tenant_failure,
)
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Forbidden, Resource, Unreachable
from kplane.provider.client.admission import Guard
from kplane.provider.client.resources import (
    MUTATING_ADMISSION_POLICIES,
    NAMESPACES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kplane.provider.errors import ServerError
from kplane.provider.testing import FakeCluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kplane.controlplane_operator.context import OperatorContext

KIND = "ValidatingWebhookConfiguration"
KINDS = f"{KIND}, MutatingWebhookConfiguration, ValidatingAdmissionPolicy, MutatingAdmissionPolicy"
RULE = {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}
DENY_ALL = {"metadata": {"name": "deny-all"}, "webhooks": [{"name": "deny.example.com", "rules": [RULE]}]}
REFUSED = ServerError(500, "InternalError", 'failed calling webhook "deny.example.com": connection refused')


class Scene:
    """A control plane with a webhook on all requests, and its object in the management cluster."""

    def __init__(self) -> None:
        self.tenant = FakeCluster("tenant")
        self.management = FakeCluster("management", kinds=[CONTROL_PLANES])
        self.told: list[str] = []
        events = SimpleNamespace(record=lambda *_, message, **__: self.told.append(message))
        context = SimpleNamespace(client=self.management.client, stores=Stores(), events=events)
        self.context = cast("OperatorContext", context)

    async def make(self, annotation: str | None) -> ControlPlane:
        annotations = {DELETE_ADMISSION_ANNOTATION: annotation} if annotation is not None else {}
        metadata: dict[str, Any] = {"name": "acme", "annotations": annotations}
        stored = await self.management.client.create(CONTROL_PLANES, {"metadata": metadata, "spec": {}})
        return ControlPlane.model_validate(stored)

    async def annotation(self) -> str | None:
        stored = await self.management.client.get(CONTROL_PLANES, "acme")
        return (stored["metadata"].get("annotations") or {}).get(DELETE_ADMISSION_ANNOTATION)

    async def names(self) -> list[str]:
        configurations = await self.tenant.client.list(VALIDATING_WEBHOOK_CONFIGURATIONS)
        return [item["metadata"]["name"] for item in configurations.items]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    new_scene = Scene()
    await new_scene.tenant.client.apply(NAMESPACES, {"metadata": {"name": "kube-system"}}, force=True)
    await new_scene.tenant.client.apply(NAMESPACES, {"metadata": {"name": "kplane-system"}}, force=True)
    await new_scene.tenant.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, DENY_ALL)
    yield new_scene
    await new_scene.tenant.aclose()
    await new_scene.management.aclose()


async def test_tenant_failure_names_configuration_and_two_ways_to_delete_it(scene: Scene) -> None:
    failure = await tenant_failure(scene.tenant.client, "setting up the control plane", REFUSED)
    assert failure.reason is Reason.WEBHOOK_REFUSED
    assert f"webhook 'deny.example.com' of {KIND} deny-all (Fail, 10 s)" in failure.message
    assert "`kubectl delete validatingwebhookconfiguration deny-all`" in failure.message
    assert f"{DELETE_ADMISSION_ANNOTATION}={KIND}/deny-all" in failure.message
    assert "connection refused" in failure.message
    # `kplane doctor` shows the first 300 characters.
    assert "kubectl delete validatingwebhookconfiguration deny-all" in failure.message[:300]


async def test_tenant_failure_of_slow_write_names_webhooks_and_is_transient(scene: Scene) -> None:
    slow = Unreachable("PATCH: no answer in time", kind="timeout", write_sent=True)
    failure = await tenant_failure(scene.tenant.client, "setting up the control plane", slow)
    # A webhook may be slow, and so may etcd.
    assert failure.reason is Reason.ENDPOINT_UNREACHABLE
    assert [guard.configuration for guard in failure.guards] == ["deny-all"]
    assert f"if that lasts, mend or delete webhook 'deny.example.com' of {KIND} deny-all" in failure.message
    read = Unreachable("GET: no answer in time", kind="timeout")
    assert (await tenant_failure(scene.tenant.client, "x", read)).guards == ()
    away = Unreachable("PATCH: connection refused", kind="connect")
    assert (await tenant_failure(scene.tenant.client, "x", away)).reason is Reason.ENDPOINT_UNREACHABLE


async def test_delete_named_deletes_configuration_and_removes_annotation(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    after = await delete_named(scene.context, control_plane, scene.tenant.client)
    assert await scene.names() == []
    assert await scene.annotation() is None
    assert DELETE_ADMISSION_ANNOTATION not in after.metadata.annotations
    assert scene.told == [f"{KIND} deny-all is deleted inside the control plane, as its annotation asked"]


async def test_delete_named_reports_missing_name_and_removes_annotation(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-al")
    await delete_named(scene.context, control_plane, scene.tenant.client)
    assert scene.told == [f"{KIND} deny-al is not inside the control plane, although its annotation names it"]
    assert await scene.names() == ["deny-all"]
    assert await scene.annotation() is None


@pytest.mark.parametrize("resource", [VALIDATING_ADMISSION_POLICIES, MUTATING_ADMISSION_POLICIES])
async def test_delete_named_deletes_a_policy(scene: Scene, resource: Resource) -> None:
    await scene.tenant.client.create(resource, {"metadata": {"name": "p"}, "spec": {}})
    control_plane = await scene.make(f"{resource.kind}/p")
    await delete_named(scene.context, control_plane, scene.tenant.client)
    assert not await scene.tenant.client.exists(resource, "p")
    assert await scene.names() == ["deny-all"]


async def test_delete_named_keeps_annotation_that_was_changed_meanwhile(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    patch = {"metadata": {"annotations": {DELETE_ADMISSION_ANNOTATION: f"{KIND}/other"}}}
    await scene.management.client.patch(CONTROL_PLANES, "acme", patch)
    await delete_named(scene.context, control_plane, scene.tenant.client)
    assert await scene.names() == []
    assert await scene.annotation() == f"{KIND}/other"


async def test_delete_named_that_is_refused_keeps_the_annotation(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    refusal = Forbidden(403, "Forbidden", "you may not")
    scene.tenant.fail(refusal, verb="delete", kind=f"admissionregistration.k8s.io/v1/{KIND}")
    with pytest.raises(ConditionError, match=f"deleting {KIND} deny-all, as annotation"):
        await delete_named(scene.context, control_plane, scene.tenant.client)
    assert await scene.annotation() == f"{KIND}/deny-all"


@pytest.mark.parametrize("value", ["deny-all", f"{KIND}/", f"{KIND}/a/b", "Namespace/default", f"{KIND}/Deny_All", ""])
async def test_delete_named_ignores_invalid_value(scene: Scene, value: str) -> None:
    control_plane = await scene.make(value)
    assert await delete_named(scene.context, control_plane, scene.tenant.client) is control_plane
    assert await scene.names() == ["deny-all"]
    (message,) = refused_deletion(control_plane, chosen=None)
    assert message.endswith(f"KIND is one of {KINDS}")


async def test_refused_deletion_is_empty_for_valid_or_missing_value(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    assert refused_deletion(control_plane, chosen=None) == []
    without = control_plane.metadata.model_copy(update={"annotations": {}})
    assert refused_deletion(control_plane.model_copy(update={"metadata": without}), chosen=None) == []


async def test_refused_deletion_names_sleeping_control_plane(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    (message,) = refused_deletion(control_plane, chosen=None, asleep=True)
    assert "is not acted on yet: control plane acme sleeps, and no API server runs" in message
    assert WAKE_REQUESTED_ANNOTATION in message
    after_deletion = await delete_named(scene.context, control_plane, scene.tenant.client)
    assert refused_deletion(after_deletion, chosen=None, asleep=True) == []


async def test_deletion_past_the_role_of_the_class_is_refused(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    for role, is_named in (("edit", False), ("cluster-admin", True)):
        spec = {"auth": {"defaultRole": role}}
        control_plane_class = ControlPlaneClass.model_validate({"metadata": {"name": "small"}, "spec": spec})
        assert is_deletion_named(control_plane, chosen=control_plane_class) is is_named
        expected = [] if is_named else ["auth.defaultRole of ControlPlaneClass small is edit; have the administrator"]
        messages = refused_deletion(control_plane, chosen=control_plane_class)
        assert len(messages) == len(expected)
        assert all(words in sentence for words, sentence in zip(expected, messages, strict=True))
    assert is_deletion_named(control_plane, chosen=None)


async def test_tenant_errors_passes_a_condition_error_on(scene: Scene) -> None:
    inner = ConditionError(Reason.ROLE_NOT_FOUND, "x")
    with pytest.raises(ConditionError) as raised:
        async with tenant_errors(scene.tenant.client, "y"):
            raise inner
    assert raised.value is inner


async def test_with_lease_guards_names_the_webhooks_until_there_are_none(scene: Scene) -> None:
    control_plane = await scene.make(None)
    guards = await lease_guards(scene.tenant.client)
    assert guards is not None
    conditions = with_lease_guards([], of=control_plane, guards=guards)
    condition = find_condition(conditions, LEASES_UNGUARDED)
    assert condition is not None
    assert (condition.status, condition.reason) == ("False", "WebhooksOnLeases")
    assert f"webhook 'deny.example.com' of {KIND} deny-all (Fail, 10 s)" in condition.message
    assert with_lease_guards(conditions, of=control_plane, guards=()) == []


def test_guard_of_a_policy_is_deleted_as_a_policy() -> None:
    guard = Guard(kind="ValidatingAdmissionPolicy", configuration="p")
    assert guard.deletion == "kubectl delete validatingadmissionpolicy p"
