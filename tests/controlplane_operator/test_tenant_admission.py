"""Webhooks and policies of tenants: how the operator names them, and deletes one that an annotation names."""

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
    """A control plane with a webhook on everything, and its object in the management cluster."""

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
        made = await self.management.client.create(CONTROL_PLANES, {"metadata": metadata, "spec": {}})
        return ControlPlane.model_validate(made)

    async def annotation(self) -> str | None:
        stored = await self.management.client.get(CONTROL_PLANES, "acme")
        return (stored["metadata"].get("annotations") or {}).get(DELETE_ADMISSION_ANNOTATION)

    async def names(self) -> list[str]:
        found = await self.tenant.client.list(VALIDATING_WEBHOOK_CONFIGURATIONS)
        return [each["metadata"]["name"] for each in found.items]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    found = Scene()
    await found.tenant.client.apply(NAMESPACES, {"metadata": {"name": "kube-system"}}, force=True)
    await found.tenant.client.apply(NAMESPACES, {"metadata": {"name": "kplane-system"}}, force=True)
    await found.tenant.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS, DENY_ALL)
    yield found
    await found.tenant.aclose()
    await found.management.aclose()


async def test_tenant_failure_names_the_configuration_and_both_ways_to_delete_it(scene: Scene) -> None:
    failure = await tenant_failure(scene.tenant.client, "setting up the control plane", REFUSED)
    assert failure.reason is Reason.WEBHOOK_REFUSED
    assert f"webhook 'deny.example.com' of {KIND} deny-all (Fail, 10 s)" in failure.message
    assert "`kubectl delete validatingwebhookconfiguration deny-all`" in failure.message
    assert f"{DELETE_ADMISSION_ANNOTATION}={KIND}/deny-all" in failure.message
    assert "connection refused" in failure.message
    # As much as `kplane doctor` shows.
    assert "kubectl delete validatingwebhookconfiguration deny-all" in failure.message[:300]


async def test_tenant_failure_of_a_slow_write_names_the_webhooks_on_it_and_is_transient(scene: Scene) -> None:
    slow = Unreachable("PATCH: no answer in time", kind="timeout", write_sent=True)
    failure = await tenant_failure(scene.tenant.client, "setting up the control plane", slow)
    # Each of them may be slow; etcd may be as well.
    assert failure.reason is Reason.ENDPOINT_UNREACHABLE
    assert [guard.configuration for guard in failure.guards] == ["deny-all"]
    assert f"if that lasts, mend or delete webhook 'deny.example.com' of {KIND} deny-all" in failure.message
    read = Unreachable("GET: no answer in time", kind="timeout")
    assert (await tenant_failure(scene.tenant.client, "x", read)).guards == ()
    away = Unreachable("PATCH: connection refused", kind="connect")
    assert (await tenant_failure(scene.tenant.client, "x", away)).reason is Reason.ENDPOINT_UNREACHABLE


async def test_delete_named_deletes_the_configuration_and_removes_the_annotation(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    after = await delete_named(scene.context, control_plane, scene.tenant.client)
    assert await scene.names() == []
    assert await scene.annotation() is None
    assert DELETE_ADMISSION_ANNOTATION not in after.metadata.annotations
    assert scene.told == [f"{KIND} deny-all is deleted inside the control plane, as its annotation asked"]


async def test_delete_named_that_finds_none_of_the_name_says_so_and_removes_the_annotation(scene: Scene) -> None:
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


async def test_delete_named_keeps_an_annotation_that_names_another_one_by_now(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    changed = {"metadata": {"annotations": {DELETE_ADMISSION_ANNOTATION: f"{KIND}/other"}}}
    await scene.management.client.patch(CONTROL_PLANES, "acme", changed)
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
async def test_delete_named_refuses_a_value_that_names_none(scene: Scene, value: str) -> None:
    control_plane = await scene.make(value)
    assert await delete_named(scene.context, control_plane, scene.tenant.client) is control_plane
    assert await scene.names() == ["deny-all"]
    (said,) = refused_deletion(control_plane, chosen=None)
    assert said.endswith(f"KIND is one of {KINDS}")


async def test_refused_deletion_says_nothing_of_a_good_value_or_of_none(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    assert refused_deletion(control_plane, chosen=None) == []
    without = control_plane.metadata.model_copy(update={"annotations": {}})
    assert refused_deletion(control_plane.model_copy(update={"metadata": without}), chosen=None) == []


async def test_deletion_named_for_a_sleeper_waits_and_names_the_sleeper(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    (said,) = refused_deletion(control_plane, chosen=None, asleep=True)
    assert "is not acted on yet: control plane acme sleeps, and no API server runs" in said
    assert WAKE_REQUESTED_ANNOTATION in said
    wrong = await delete_named(scene.context, control_plane, scene.tenant.client)
    assert refused_deletion(wrong, chosen=None, asleep=True) == []


async def test_deletion_past_the_role_of_the_class_is_refused(scene: Scene) -> None:
    control_plane = await scene.make(f"{KIND}/deny-all")
    for role, is_named in (("edit", False), ("cluster-admin", True)):
        spec = {"auth": {"defaultRole": role}}
        chosen = ControlPlaneClass.model_validate({"metadata": {"name": "small"}, "spec": spec})
        assert is_deletion_named(control_plane, chosen=chosen) is is_named
        told = [] if is_named else ["auth.defaultRole of ControlPlaneClass small is edit; have the administrator"]
        said = refused_deletion(control_plane, chosen=chosen)
        assert len(said) == len(told)
        assert all(words in sentence for words, sentence in zip(told, said, strict=True))
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
    told = find_condition(conditions, LEASES_UNGUARDED)
    assert told is not None
    assert (told.status, told.reason) == ("False", "WebhooksOnLeases")
    assert f"webhook 'deny.example.com' of {KIND} deny-all (Fail, 10 s)" in told.message
    assert with_lease_guards(conditions, of=control_plane, guards=()) == []


def test_guard_of_a_policy_is_deleted_as_a_policy() -> None:
    guard = Guard(kind="ValidatingAdmissionPolicy", configuration="p")
    assert guard.deletion == "kubectl delete validatingadmissionpolicy p"
