"""Deletion of adopted control planes: the operator revokes their credentials, or reports a failed revocation."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kplane.controlplane_operator.backends import adopted as external
from kplane.controlplane_operator.kinds import CONTROL_PLANE_ENDPOINTS, CONTROL_PLANES
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, EVENTS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Unauthorized

from .line import Line

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


Adopt = Callable[..., Awaitable[dict[str, Any]]]

_ACCOUNTS = ("controlplane-admin", "controlplane-controllers")
_HOUR = dt.timedelta(hours=1)


async def become(field: Any, adopt: Adopt, at: ClusterConfig) -> str:
    """Adopt an API server as control plane `guest`, and return the control plane's uid."""
    await adopt("guest", at=at)
    return str((await field.becomes("ControlPlane", "guest", "Reconciled"))["metadata"]["uid"])


async def refused(config: ClusterConfig) -> bool:
    async with Client(config, field_manager="kplane") as client:
        try:
            await client.list(NAMESPACES)
        except Unauthorized:
            return True
    return False


async def not_revoked(field: Any, uid: str) -> list[dict[str, Any]]:
    events = (await field.client.list(EVENTS, namespace="default")).items
    return [
        event
        for event in events
        if event["reason"] == "CredentialsNotRevoked" and event["involvedObject"]["uid"] == uid
    ]


@pytest.mark.parametrize("seen", [False, True], ids=["at-once", "one-after-the-other"])
async def test_tokens_are_revoked_if_endpoint_is_deleted_first(
    field: Any, adopt: Adopt, tenant: Any, seen: bool
) -> None:
    uid = await become(field, adopt, tenant.administrator)
    tokens = [await field.tenant("guest", secret=key) for key in ("kubeconfigSecretRef", "controllersSecretRef")]
    await field.lets_in(*tokens)
    async with Client(tenant.administrator, field_manager="kplane") as client:
        # The API server caches authenticated tokens for 10 s, so these tokens stay unused until the deletion.
        unused = [await request_token(client, service_account=name, lifetime=_HOUR) for name in _ACCOUNTS]
        await field.client.delete(SECRETS, "guest", namespace="default")
        await field.client.delete(CONTROL_PLANE_ENDPOINTS, "guest")
        if seen:
            await field.becomes("ControlPlane", "guest", "EndpointPending")
        await field.client.delete(CONTROL_PLANES, "guest")
        await field.gone(CONTROL_PLANES, "guest")
        for token in unused:
            former = replace(tenant.administrator, token=token.value, client_certificate=None, client_key=None)
            await field.eventually(lambda former=former: refused(former))
        for config in tokens:
            await field.eventually(lambda config=config: field.refuses(config))
        for account in _ACCOUNTS:
            with pytest.raises(NotFound):
                await client.get(SERVICE_ACCOUNTS, account, namespace="kplane-system")
            with pytest.raises(NotFound):
                await client.get(CLUSTER_ROLE_BINDINGS, account)
    assert await not_revoked(field, uid) == []


async def test_unreachable_api_server_does_not_block_deletion(
    field: Any, adopt: Adopt, tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(external, "_REVOKE_SECONDS", 1.0)
    line = Line(tenant.administrator.server)
    await line.lay()
    try:
        uid = await become(field, adopt, tenant.administrator.with_server(f"https://127.0.0.1:{line.port}"))
        line.cut()
        await field.client.delete(CONTROL_PLANES, "guest")
        await field.gone(CONTROL_PLANES, "guest")
    finally:
        line.end()
    # A repeated step, as after a conflict, emits another Event, whose message depends on the failure.
    event, *_ = await field.eventually(lambda: not_revoked(field, uid))
    assert event["type"] == "Warning"
    assert "stay valid in the control plane until they expire" in event["message"]
    assert "and the published credentials fail as well" in event["message"]
