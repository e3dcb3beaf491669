"""Probes of credentials at a real API server."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.controlplanes.credential_probes import ProbedCredentials
from kplane.controlplane_operator.tenant.bootstrap import (
    CONTROLLERS_ACCOUNT,
    Subject,
    admin_binding,
    bootstrap,
    controllers_binding,
)
from kplane.pki.issuing import issue_certificate
from kplane.provider import Client
from kplane.provider.client.connections import Connections
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES

pytestmark = pytest.mark.integration

_ADMIN = Subject("User", "kplane:admin:probed")

Eventually = Callable[..., Awaitable[Any]]


@pytest.mark.parametrize("role", ["cluster-admin", "reader"])
async def test_refusal_is_none_for_bound_role_and_names_missing_objects(
    tenant: Any, role: str, eventually: Eventually
) -> None:
    identity = issue_certificate(tenant.authorities.client, user=_ADMIN.name, lifetime=dt.timedelta(hours=1))
    bindings = admin_binding(_ADMIN, role=role), controllers_binding(CONTROLLERS_ACCOUNT)
    credentials = ProbedCredentials("1", tenant.administrator, ((identity, bindings[0]), (identity, bindings[1])))
    connections = Connections()

    async def refusal() -> str | None:
        return await credentials.refusal(connections)

    async def says(*words: str) -> None:
        await eventually(refusal, lambda found: found is not None and all(word in found for word in words))

    async def bind() -> None:
        await bootstrap(client, admin=_ADMIN, admin_role=role, controllers=CONTROLLERS_ACCOUNT)
        assert await credentials.refusal_after_repair(connections) is None

    async with Client(tenant.administrator, field_manager="kplane") as client:
        rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
        if role == "reader":
            await client.apply(CLUSTER_ROLES, {"metadata": {"name": role}, "rules": rules}, force=True)
        await bind()
        await client.delete(CLUSTER_ROLE_BINDINGS, "controlplane-admin")
        await says("ClusterRoleBinding controlplane-admin", "does not exist")
        await bind()
        await client.patch(CLUSTER_ROLE_BINDINGS, "controlplane-admin", {"subjects": []})
        await says("does not give role", role)
        await bind()
        if role == "reader":
            await client.delete(CLUSTER_ROLES, role)
            await says("ClusterRole reader", "does not exist")
    await connections.aclose()
