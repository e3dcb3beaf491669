"""Objects that the models refuse, stored before a rule of the CRD: reported, maintained and deletable."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS, CONTROL_PLANES
from kplane.provider import Invalid, NotFound
from kplane.provider.client.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_CRD = "controlplanes.controlplane.kplane.dev"
_ODD = {"endpointRef": {"name": "nowhere"}, "version": "1.36.0"}
"""Fields that the rules of the CRD forbid in combination."""


def _without_rules(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _without_rules(value) for key, value in schema.items() if key != "x-kubernetes-validations"}
    return [_without_rules(item) for item in schema] if isinstance(schema, list) else schema


@contextlib.asynccontextmanager
async def without_rules(field: Any) -> AsyncIterator[None]:
    """Remove the validation rules from the CRD of control planes, as in an older version of the CRD."""
    crd = await field.client.get(CUSTOM_RESOURCE_DEFINITIONS, _CRD)
    strict = copy.deepcopy(crd["spec"]["versions"])

    async def set_versions(versions: Any) -> None:
        await field.client.patch(CUSTOM_RESOURCE_DEFINITIONS, _CRD, {"spec": {"versions": versions}})

    async def takes_all() -> bool:
        try:
            await field.create("ControlPlane", "odd-probe", **_ODD)
        except Invalid:
            return False  # AlreadyExists is no verdict: the former probe still terminates
        await field.client.delete(CONTROL_PLANES, "odd-probe")
        return True

    async def is_strict() -> bool:
        return not await takes_all()

    await set_versions(_without_rules(strict))
    try:
        await field.eventually(takes_all, timeout=120.0)
        yield
    finally:
        await set_versions(strict)
        await field.eventually(is_strict, timeout=120.0)


async def says(field: Any, name: str, kind: str, reason: str, *, of: str = "ControlPlane") -> dict[str, Any]:
    async def found() -> dict[str, Any]:
        conditions = (await field.get(of, name)).get("status", {}).get("conditions", [])
        return next((item for item in conditions if item["type"] == kind), {})

    result: dict[str, Any] = await field.eventually(found, lambda item: item.get("reason", "") == reason, timeout=120.0)
    return result


async def test_invalid_spec_of_adopted_control_plane_names_the_field(
    field: Any, adopt: Callable[..., Awaitable[dict[str, Any]]]
) -> None:
    await adopt("odd-adopted")
    before = await field.becomes("ControlPlane", "odd-adopted", "Reconciled")
    async with without_rules(field):
        await field.create("ControlPlane", "odd-never", **_ODD)
        await field.client.patch(CONTROL_PLANES, "odd-adopted", {"spec": {"version": _ODD["version"]}})
    ready = await says(field, "odd-never", "Ready", "SpecInvalid")
    assert ready["status"] == "False"
    assert "spec.version" in ready["message"]
    await says(field, "odd-adopted", "Synced", "SpecInvalid")
    status = (await field.get("ControlPlane", "odd-adopted"))["status"]
    assert (status["endpoint"], status["phase"]) == (before["status"]["endpoint"], "Ready")
    await field.client.patch(CONTROL_PLANES, "odd-adopted", {"spec": {"version": None}})
    await says(field, "odd-adopted", "Synced", "")
    await field.client.delete(CONTROL_PLANES, "odd-never")
    await field.gone(CONTROL_PLANES, "odd-never")


@pytest.mark.slow
async def test_deletion_with_invalid_spec_follows_the_recorded_policy(field: Any) -> None:
    for name, policy in (("odd-gone", "Destroy"), ("odd-kept", "Retain"), ("odd-mended", "Destroy")):
        await field.create("ControlPlane", name, deletionPolicy=policy)
    await field.create(
        "ControlPlaneRegistration", "odd-gone", controlPlaneRef={"name": "odd-gone"}, services=["Controllers"]
    )
    before = {}
    for name in ("odd-gone", "odd-kept", "odd-mended"):
        before[name] = await field.becomes("ControlPlane", name, "Reconciled")
    registered = await field.becomes("ControlPlaneRegistration", "odd-gone", "Resolved")
    async with without_rules(field):
        await field.create("ControlPlane", "odd-new", **_ODD)
        for name in ("odd-gone", "odd-kept"):
            await field.client.patch(CONTROL_PLANES, name, {"spec": _ODD})
        await field.client.patch(CONTROL_PLANES, "odd-mended", {"spec": {"dedicated": {}}})
        # The operator never applied this policy, because the spec is invalid.
        await field.client.patch(CONTROL_PLANES, "odd-kept", {"spec": {"deletionPolicy": "Destroy"}})

    ready = await says(field, "odd-new", "Ready", "SpecInvalid")
    assert ready["status"] == "False"
    assert "spec.version" in ready["message"]
    for name, published in before.items():
        await says(field, name, "Synced", "SpecInvalid")
        status = (await field.get("ControlPlane", name))["status"]
        assert (status["endpoint"], status["phase"]) == (published["status"]["endpoint"], "Ready")
    # Other control planes reconcile, and the resolved registration stays as published.
    await field.create("ControlPlane", "odd-neighbour", virtual={"clusterPath": "odd-gone"}, deletionPolicy="Destroy")
    await field.becomes("ControlPlane", "odd-neighbour", "ClusterPathInUse")
    await field.client.patch(CONTROL_PLANE_REGISTRATIONS, "odd-gone", {"metadata": {"labels": {"look": "again"}}})
    assert (await field.get("ControlPlaneRegistration", "odd-gone"))["status"] == registered["status"]

    await field.client.patch(CONTROL_PLANES, "odd-mended", {"spec": {"dedicated": None}})
    await says(field, "odd-mended", "Synced", "")
    assert await field.reason("ControlPlane", "odd-mended") == "Reconciled"

    for name in ("odd-new", "odd-gone", "odd-kept"):
        await field.client.delete(CONTROL_PLANES, name)
    for name in ("odd-new", "odd-gone", "odd-kept"):
        await field.gone(CONTROL_PLANES, name)
    assert int(await field.handle.tenants_etcd.count("/clusters/odd-kept/")) > 100
    namespace = await field.client.get(NAMESPACES, "kplane-cp-odd-kept")
    assert "controlplane.kplane.dev/adoption-token" in namespace["metadata"]["annotations"]
    with pytest.raises(NotFound):
        await field.client.get(NAMESPACES, "kplane-cp-odd-gone")
    # Its cluster path is free, and has no data.
    await field.becomes("ControlPlane", "odd-neighbour", "Reconciled")
    await field.client.delete(NAMESPACES, "kplane-cp-odd-kept")
