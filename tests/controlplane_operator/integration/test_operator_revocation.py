"""Control planes of somebody else's API server go: what was issued there is taken back, or it is told that not."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from api.names import ALLOW_ENDPOINT_LABEL
from controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from provider import (
    CLUSTER_ROLE_BINDINGS,
    EVENTS,
    NAMESPACES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Client,
    ClusterConfig,
    NotFound,
    Unauthorized,
)

pytestmark = pytest.mark.integration


@pytest.fixture
async def adopted(field: Any, start_tenant: Callable[[str], Awaitable[Any]]) -> AsyncIterator[Any]:
    """The API server that control plane `guest` stands for."""
    tenant = await start_tenant("a")
    kubeconfig = base64.b64encode(json.dumps(tenant.administrator.to_kubeconfig()).encode()).decode()
    reference = {"name": "guest-admin", "namespace": "default"}
    body = {"metadata": {**reference, "labels": {ALLOW_ENDPOINT_LABEL: "true"}}, "data": {"kubeconfig": kubeconfig}}
    await field.client.apply(SECRETS, body)
    url = tenant.administrator.server
    await field.create("ControlPlaneEndpoint", "guest", endpoint=url, credentialsSecretRef=reference)
    await field.create("ControlPlane", "guest", mode="Dedicated", endpointRef={"name": "guest"})
    await field.becomes("ControlPlane", "guest", "Reconciled")
    return tenant


async def refused(config: ClusterConfig) -> bool:
    async with Client(config) as client:
        try:
            await client.list(NAMESPACES)
        except Unauthorized:
            return True
    return False


async def not_revoked(field: Any, uid: str) -> list[dict[str, Any]]:
    found = (await field.client.list(EVENTS, namespace="default")).items
    return [
        each for each in found if each["reason"] == "CredentialsNotRevoked" and each["involvedObject"]["uid"] == uid
    ]


async def delete_ways_in(field: Any) -> None:
    await field.client.delete(SECRETS, "guest-admin", namespace="default")
    await field.client.delete(CONTROL_PLANE_ENDPOINTS, "guest")


@pytest.mark.parametrize("seen", [False, True], ids=["at-once", "one-after-the-other"])
async def test_deleted_along_with_its_endpoint_and_our_credentials_its_tokens_are_refused(
    field: Any, adopted: Any, eventually: Callable[..., Awaitable[Any]], seen: bool
) -> None:
    tokens = [await field.tenant("guest", secret=key) for key in ("kubeconfigSecretRef", "controllersSecretRef")]
    await field.lets_in(*tokens)
    uid = (await field.get("ControlPlane", "guest"))["metadata"]["uid"]
    await delete_ways_in(field)
    if seen:
        await field.becomes("ControlPlane", "guest", "EndpointPending")
    await field.client.delete(CONTROL_PLANES, "guest")
    await field.gone(CONTROL_PLANES, "guest")
    # An API server remembers for 10 s whom it let in.
    for config in tokens:
        await eventually(lambda config=config: refused(config), timeout=120.0)
    async with Client(adopted.administrator) as client:
        for account in ("controlplane-admin", "controlplane-controllers"):
            with pytest.raises(NotFound):
                await client.get(SERVICE_ACCOUNTS, account, namespace="kplane-system")
            with pytest.raises(NotFound):
                await client.get(CLUSTER_ROLE_BINDINGS, account)
    assert await not_revoked(field, uid) == []


async def test_an_api_server_that_is_away_holds_no_deletion_and_it_is_told(
    field: Any, adopted: Any, shared_etcd: Any, eventually: Callable[..., Awaitable[Any]]
) -> None:
    uid = (await field.get("ControlPlane", "guest"))["metadata"]["uid"]
    await shared_etcd.runtime.delete("apiserver-a")
    await field.client.delete(CONTROL_PLANES, "guest")
    await field.gone(CONTROL_PLANES, "guest")
    # A step that is repeated, as after a conflict, tells again, in other words where the failure was another one.
    event, *_ = await eventually(lambda: not_revoked(field, uid))
    assert event["type"] == "Warning"
    assert "stays valid there until it expires" in event["message"]
    assert "nor by the published credentials" in event["message"]
