"""What the management cluster refuses is told where people look, and the telling ends by itself with the refusal."""

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
    """Have nobody create or change these in namespaces of control planes whose name begins with `refused`."""
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
    found = (await field.client.list(EVENTS, namespace="default")).items
    return [each for each in found if (each["involvedObject"]["name"], each["reason"]) == (name, reason)]


async def metrics(field: Any) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{field.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


async def test_a_new_control_plane_says_what_is_refused_and_goes_on_when_it_no_longer_is(
    field: Any, adopt: Adopt
) -> None:
    async with refusing(field, SECRETS):
        await adopt("refused-new")
        ready = await says(field, "refused-new", "Ready", "ManagementClusterRefused")
        assert ready["status"] == "False"
        assert _WORDS in ready["message"]
        assert (await field.get("ControlPlane", "refused-new"))["status"]["phase"] == "Failed"
        assert await condition(field, "refused-new", "Synced") == {}
        told = await field.eventually(lambda: events(field, "refused-new", "ManagementClusterRefused"))
        # It is tried again meanwhile, and said no more than once.
        first = (await metrics(field)).get(_TROUBLES, 0.0)
        shown = await field.eventually(lambda: metrics(field), lambda now: now[_TROUBLES] >= first + 2, timeout=120.0)
        assert shown['controller_runtime_reconcile_errors_total{controller="controlplane"}'] > 1
        again = await events(field, "refused-new", "ManagementClusterRefused")
        assert (
            [(each["type"], each["count"]) for each in again]
            == [("Warning", 1)]
            == [(each["type"], each["count"]) for each in told]
        )
    found = await field.becomes("ControlPlane", "refused-new", "Reconciled")
    assert found["status"]["phase"] == "Ready"


async def test_what_is_published_stays_and_says_that_it_is_not_kept_up(field: Any, adopt: Adopt) -> None:
    await adopt("refused-old")
    await field.becomes("ControlPlane", "refused-old", "Reconciled")
    name, namespace = "controlplane-refused-old-kubeconfig", "kplane-cp-refused-old"
    before = (await field.settles(lambda: field.get("ControlPlane", "refused-old")))["status"]
    async with refusing(field, SECRETS):
        await field.client.delete(SECRETS, name, namespace=namespace)
        maintained = await says(field, "refused-old", "Synced", "ManagementClusterRefused")
        assert (maintained["status"], _WORDS in maintained["message"]) == ("False", True)
        status = (await field.get("ControlPlane", "refused-old"))["status"]
        others = [each for each in status["conditions"] if each["type"] != "Synced"]
        assert {**status, "conditions": others} == before
        [told] = await field.eventually(lambda: events(field, "refused-old", "ManagementClusterRefused"))
        assert told["type"] == "Warning"
    assert await says(field, "refused-old", "Synced", "") == {}
    await field.client.get(SECRETS, name, namespace=namespace)
    assert (await condition(field, "refused-old", "Ready"))["status"] == "True"
    [told] = await field.eventually(lambda: events(field, "refused-old", "Synced"))
    assert told["type"] == "Normal"


async def test_a_registration_says_that_nobody_can_be_let_to_its_secret(field: Any, adopt: Adopt) -> None:
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
async def test_a_removal_that_is_refused_says_so_in_the_same_words(field: Any) -> None:
    await field.create("ControlPlane", "refused-end")
    await field.becomes("ControlPlane", "refused-end", "Reconciled")
    async with refusing(field, SECRETS):
        # Retain takes the protection off the keys, which is a change of their Secret.
        await field.client.delete(CONTROL_PLANES, "refused-end")

        async def told() -> dict[str, Any]:
            return await condition(field, "refused-end", "Deleting")

        await field.eventually(told, lambda found: _WORDS in found.get("message", ""), timeout=120.0)
        # Which step it is that is refused is said as long as it is tried again.
        before = (await metrics(field))[_TROUBLES]
        await field.eventually(lambda: metrics(field), lambda now: now[_TROUBLES] >= before + 2, timeout=120.0)
        deleting = await told()
        assert deleting["message"].startswith("the management cluster refused a write: ")
        assert (deleting["status"], deleting["reason"]) == ("True", "RetainingData")
    await field.gone(CONTROL_PLANES, "refused-end")
    with contextlib.suppress(NotFound):
        await field.client.delete(NAMESPACES, "kplane-cp-refused-end")
