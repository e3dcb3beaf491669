"""Rights of the gateway in the management cluster: it may change two annotations of control planes (deploy/rbac)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
import pytest_asyncio

from kplane.api.names import LAST_USED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.embedded.credentials import GATEWAY_USER, SERVICE_ACCOUNT_GROUPS
from kplane.embedded.handle import Handle
from kplane.gateway.control_planes import CONTROL_PLANES, request_wake
from kplane.gateway.routes import Route, Sleep
from kplane.provider import ApiError, Client, ClusterConfig
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.client.resources import NAMESPACES
from kplane.provider.errors import Forbidden, Invalid

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NAME = f"rights-{os.getpid()}"
NOW = datetime(2026, 11, 23, 12, 0, 0, 1, tzinfo=UTC)
TIME = NOW.isoformat()
TAKEN = "example.org/taken"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin(api_server: Handle) -> AsyncIterator[Client]:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        metadata = {"name": NAME, "annotations": {TAKEN: "yes"}, "finalizers": ["example.org/finalizer"]}
        await client.create(CONTROL_PLANES, {"metadata": metadata, "spec": {"mode": "Virtual"}})
        yield client
        await client.patch(CONTROL_PLANES, NAME, {"metadata": {"finalizers": None}})
        await client.delete(CONTROL_PLANES, NAME)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(api_server: Handle, admin: Client, eventually: Callable[..., Any]) -> AsyncIterator[Client]:
    impersonation = Impersonation(GATEWAY_USER, groups=SERVICE_ACCOUNT_GROUPS)
    config = replace(ClusterConfig.load(api_server.admin_kubeconfig), impersonation=impersonation)
    async with Client(config, field_manager="kplane-gateway") as client:

        async def in_force() -> bool:
            return "ValidatingAdmissionPolicy" in await _refusal(client, {"spec": {"deletionPolicy": "Destroy"}})

        await eventually(in_force)
        yield client


async def _refusal(client: Client, body: dict[str, Any], *, subresource: str | None = None) -> str:
    path = CONTROL_PLANES.path(NAME) + (f"/{subresource}" if subresource else "")
    try:
        await client.request(
            "PATCH", path, body=body, params={"dryRun": "All"}, content_type="application/merge-patch+json"
        )
    except ApiError as error:
        return str(error)
    return ""


async def test_gateway_requests_wake_only_for_matching_uid(gateway: Client, admin: Client) -> None:
    uid = (await admin.get(CONTROL_PLANES, NAME))["metadata"]["uid"]
    await request_wake(gateway, _sleeping(uid), NOW)
    control_plane = await admin.get(CONTROL_PLANES, NAME)
    assert control_plane["metadata"]["annotations"] == {TAKEN: "yes", WAKE_REQUESTED_ANNOTATION: TIME}
    with pytest.raises(Invalid):
        await request_wake(gateway, _sleeping("that-of-an-earlier-one"), NOW)


def _sleeping(uid: str) -> Route:
    return Route(key=uid, cluster_path=NAME, upstream=None, asleep=Sleep(name=NAME, since=NOW))


@pytest.mark.parametrize(
    "annotations",
    [{WAKE_REQUESTED_ANNOTATION: TIME}, {LAST_USED_ANNOTATION: TIME}, {WAKE_REQUESTED_ANNOTATION: None}],
)
async def test_gateway_may_write_its_annotations(gateway: Client, annotations: dict[str, Any]) -> None:
    assert await _refusal(gateway, {"metadata": {"annotations": annotations}}) == ""


@pytest.mark.parametrize(
    "body",
    [
        {"spec": {"deletionPolicy": "Destroy"}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"finalizers": None}},
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "b"}]}},
        {"metadata": {"annotations": {TAKEN: None}}},
        {"metadata": {"annotations": {TAKEN: "no"}}},
        {"metadata": {"annotations": {"controlplane.kplane.dev/rotate": "1"}}},
        {"metadata": {"annotations": {WAKE_REQUESTED_ANNOTATION: TIME, "controlplane.kplane.dev/paused": "true"}}},
        {"metadata": {"annotations": {WAKE_REQUESTED_ANNOTATION: "x" * 41}}},
    ],
    ids=str,
)
async def test_gateway_may_not_change_other_fields(gateway: Client, admin: Client, body: dict[str, Any]) -> None:
    assert "ValidatingAdmissionPolicy 'kplane-gateway'" in await _refusal(gateway, body)
    # The policy does not apply to other users.
    assert "ValidatingAdmissionPolicy" not in await _refusal(admin, body)


async def test_gateway_has_no_other_rights(gateway: Client) -> None:
    assert "forbidden" in await _refusal(gateway, {"status": {"phase": "Ready"}}, subresource="status")
    for call in (
        gateway.delete(CONTROL_PLANES, NAME),
        gateway.create(CONTROL_PLANES, {"metadata": {"name": "another"}, "spec": {"mode": "Virtual"}}),
        gateway.get(CONTROL_PLANES, NAME),
        gateway.list(NAMESPACES),
    ):
        with pytest.raises(Forbidden):
            await call
