"""Refused writes in the management cluster appear in conditions, Events and metrics until the refusal ends."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from kplane.controlplane_operator import failures
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import AlreadyExists, ApiError, NotFound, Resource
from kplane.provider.client.resources import EVENTS, NAMESPACES, ROLES, SECRETS

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

Adopt = Callable[..., Awaitable[dict[str, Any]]]

_TROUBLES = 'kplane_reconcile_failures_total{controller="controlplane",reason="ManagementClusterRefused"}'
_GROUP = "admissionregistration.k8s.io/v1"
POLICIES = Resource(_GROUP, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", namespaced=False)
BINDINGS = Resource(_GROUP, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", namespaced=False)
_PROBE = "kplane-cp-refused-probe"
_WORDS = "nothing is put in here, says somebody's policy"


@pytest.fixture(autouse=True)
def told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_LASTS_SECONDS", 0.5)


@contextlib.asynccontextmanager
async def refusing(field: Any, resource: Resource) -> AsyncIterator[None]:
    """Deny writes of the resource in namespaces of control planes whose name begins with `refused`."""
    group = resource.api_version.rpartition("/")[0]
    rule = {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource.plural],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "!request.namespace.startsWith('kplane-cp-refused')", "message": _WORDS}],
    }
    with contextlib.suppress(AlreadyExists):
        await field.client.create(NAMESPACES, {"metadata": {"name": _PROBE}})
    await field.client.create(POLICIES, {"metadata": {"name": "refusing"}, "spec": spec})
    binding = {"policyName": "refusing", "validationActions": ["Deny"]}
    await field.client.create(BINDINGS, {"metadata": {"name": "refusing"}, "spec": binding})
    try:
        await field.eventually(lambda: refused(field, resource), timeout=120.0)
        yield
    finally:
        await field.client.delete(BINDINGS, "refusing")
        await field.client.delete(POLICIES, "refusing")

    async def let_through() -> bool:
        return not await refused(field, resource)

    await field.eventually(let_through, timeout=120.0)


async def refused(field: Any, resource: Resource) -> bool:
    try:
        await field.client.create(resource, {"metadata": {"name": "probe", "namespace": _PROBE}})
    except ApiError as error:
        return _WORDS in str(error)
    await field.client.delete(resource, "probe", namespace=_PROBE)
    return False


async def condition(field: Any, name: str, kind: str, *, of: str = "ControlPlane") -> dict[str, Any]:
    conditions = (await field.get(of, name)).get("status", {}).get("conditions", [])
    return next((item for item in conditions if item["type"] == kind), {})


async def says(field: Any, name: str, kind: str, reason: str, *, of: str = "ControlPlane") -> dict[str, Any]:
    async def found() -> dict[str, Any]:
        return await condition(field, name, kind, of=of)

    result: dict[str, Any] = await field.eventually(found, lambda item: item.get("reason", "") == reason, timeout=120.0)
    return result


async def events(field: Any, name: str, reason: str) -> list[dict[str, Any]]:
    items = (await field.client.list(EVENTS, namespace="default")).items
    return [event for event in items if (event["involvedObject"]["name"], event["reason"]) == (name, reason)]


async def metrics(field: Any) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{field.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_new_control_plane_is_failed_while_writes_are_refused(field: Any, adopt: Adopt) -> None:
    async with refusing(field, SECRETS):
        await adopt("refused-new")
        ready = await says(field, "refused-new", "Ready", "ManagementClusterRefused")
        assert ready["status"] == "False"
        assert _WORDS in ready["message"]
        assert (await field.get("ControlPlane", "refused-new"))["status"]["phase"] == "Failed"
        assert await condition(field, "refused-new", "Synced") == {}
        first_events = await field.eventually(lambda: events(field, "refused-new", "ManagementClusterRefused"))
        # The operator retries, and emits a single Event.
        first = (await metrics(field)).get(_TROUBLES, 0.0)
        samples = await field.eventually(lambda: metrics(field), lambda now: now[_TROUBLES] >= first + 2, timeout=120.0)
        assert samples['controller_runtime_reconcile_errors_total{controller="controlplane"}'] > 1
        later_events = await events(field, "refused-new", "ManagementClusterRefused")
        assert (
            [(event["type"], event["count"]) for event in later_events]
            == [("Warning", 1)]
            == [(event["type"], event["count"]) for event in first_events]
        )
    control_plane = await field.becomes("ControlPlane", "refused-new", "Reconciled")
    assert control_plane["status"]["phase"] == "Ready"


async def test_published_control_plane_is_unsynced_while_writes_are_refused(field: Any, adopt: Adopt) -> None:
    await adopt("refused-old")
    await field.becomes("ControlPlane", "refused-old", "Reconciled")
    name, namespace = "controlplane-refused-old-kubeconfig", "kplane-cp-refused-old"
    before = (await field.settles(lambda: field.get("ControlPlane", "refused-old")))["status"]
    async with refusing(field, SECRETS):
        await field.client.delete(SECRETS, name, namespace=namespace)
        maintained = await says(field, "refused-old", "Synced", "ManagementClusterRefused")
        assert (maintained["status"], _WORDS in maintained["message"]) == ("False", True)
        status = (await field.get("ControlPlane", "refused-old"))["status"]
        other_conditions = [item for item in status["conditions"] if item["type"] != "Synced"]
        assert {**status, "conditions": other_conditions} == before
        [event] = await field.eventually(lambda: events(field, "refused-old", "ManagementClusterRefused"))
        assert event["type"] == "Warning"
    assert await says(field, "refused-old", "Synced", "") == {}
    await field.client.get(SECRETS, name, namespace=namespace)
    assert (await condition(field, "refused-old", "Ready"))["status"] == "True"
    [event] = await field.eventually(lambda: events(field, "refused-old", "Synced"))
    assert event["type"] == "Normal"


async def test_registration_is_not_ready_while_its_grant_is_refused(field: Any, adopt: Adopt) -> None:
    await adopt("refused-grant")
    await field.becomes("ControlPlane", "refused-grant", "Reconciled")
    async with refusing(field, ROLES):
        spec = {"controlPlaneRef": {"name": "refused-grant"}, "services": ["Controllers"]}
        await field.create("ControlPlaneRegistration", "refused-grant", **spec)
        of = "ControlPlaneRegistration"
        ready = await says(field, "refused-grant", "Ready", "ManagementClusterRefused", of=of)
        assert (ready["status"], _WORDS in ready["message"]) == ("False", True)
        assert not (await field.get(of, "refused-grant"))["status"].get("ready")
    await field.becomes(of, "refused-grant", "Resolved")
    await field.client.delete(CONTROL_PLANE_REGISTRATIONS, "refused-grant")


@pytest.mark.slow
async def test_deletion_reports_refused_writes_in_its_condition(field: Any) -> None:
    await field.create("ControlPlane", "refused-end")
    await field.becomes("ControlPlane", "refused-end", "Reconciled")
    async with refusing(field, SECRETS):
        # Retain takes the protection off the keys, which is a change of their Secret.
        await field.client.delete(CONTROL_PLANES, "refused-end")

        async def told() -> dict[str, Any]:
            return await condition(field, "refused-end", "Deleting")

        await field.eventually(told, lambda found: _WORDS in found.get("message", ""), timeout=120.0)
        # The condition names the refused step while the operator retries.
        before = (await metrics(field))[_TROUBLES]
        await field.eventually(lambda: metrics(field), lambda now: now[_TROUBLES] >= before + 2, timeout=120.0)
        deleting = await told()
        assert deleting["message"].startswith("the management cluster refused a write: ")
        assert (deleting["status"], deleting["reason"]) == ("True", "RetainingData")
    await field.gone(CONTROL_PLANES, "refused-end")
    with contextlib.suppress(NotFound):
        await field.client.delete(NAMESPACES, "kplane-cp-refused-end")
