"""A user breaks the published credentials inside a control plane: the operator repairs them without a request."""

from __future__ import annotations

import time
from typing import Any

import pytest

from kplane.provider import Client
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, EVENTS, SERVICE_ACCOUNTS

from .conftest import owner_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

_LIMIT_SECONDS = 32.0
"""Period of the probes, lifetime of the API server's token cache, and two seconds for the repair."""


async def lets_in(field: Any, name: str, *, secret: str) -> bool:
    """Return whether the control plane accepts its published kubeconfig."""
    return not await field.refuses(await field.tenant(name, secret=secret))


@pytest.mark.parametrize(
    ("what", "secret"),
    [
        ("account", "kubeconfigSecretRef"),
        ("binding", "kubeconfigSecretRef"),
        ("subjects", "kubeconfigSecretRef"),
        # A virtual control plane's controllers have a certificate, and no ServiceAccount.
        ("binding", "controllersSecretRef"),
        ("subjects", "controllersSecretRef"),
    ],
)
async def test_credentials_are_repaired_after_a_user_breaks_them(
    field: Any, house: dict[str, Any], secret: str, what: str
) -> None:
    name = "house"
    kind = "admin" if secret == "kubeconfigSecretRef" else "controllers"
    owner = await owner_of(await field.tenant(name))
    await field.lets_in(owner)
    async with Client(owner, field_manager="kplane") as tenant:
        if what == "account":
            await tenant.delete(SERVICE_ACCOUNTS, f"controlplane-{kind}", namespace="kplane-system")
        elif what == "binding":
            await tenant.delete(CLUSTER_ROLE_BINDINGS, f"controlplane-{kind}")
        else:
            await tenant.patch(CLUSTER_ROLE_BINDINGS, f"controlplane-{kind}", {"subjects": []})
    began = time.monotonic()

    async def refused() -> bool:
        return not await lets_in(field, name, secret=secret)

    if what == "account":
        # The API server caches the authentication of a token for ten seconds.
        await field.eventually(refused, timeout=15.0)
    await field.eventually(lambda: lets_in(field, name, secret=secret), timeout=60.0)
    assert time.monotonic() - began < _LIMIT_SECONDS
    assert (await field.get("ControlPlane", name))["metadata"]["uid"] == house["metadata"]["uid"]
    events = (await field.client.list(EVENTS, namespace="default")).items
    messages = [event["message"] for event in events if event["reason"] == "CredentialsRejected"]
    assert any(f"controlplane-{kind}" in message for message in messages)
