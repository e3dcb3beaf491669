"""Rights of the roles that a class may name, as documented in docs/how-to/grant-rights.md."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kplane.controlplane_operator.tenant.bootstrap import Subject, bootstrap
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.pki.authorities import CONTROLLERS_USER
from kplane.pki.primitives import issue_client
from kplane.provider import Client, ClusterConfig
from kplane.provider.access.impersonation import Impersonation
from kplane.provider.client.resources import CLUSTER_ROLES, CONFIG_MAPS, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden

pytestmark = pytest.mark.integration

_HOLDER = Subject("User", "holder")
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
_ACCOUNT = "clusterrole-aggregation-controller"
"""ServiceAccount of kube-system. The API server lets it change every ClusterRole beyond its own rights."""

Eventually = Callable[..., Awaitable[Any]]


async def _aggregate(client: Client) -> None:
    """Fill the roles as kube-controller-manager does, which does not run in these tests."""
    for role in ("view", "edit", "admin"):
        parts = (await client.list(CLUSTER_ROLES, label_selector=f"{_AGGREGATE}{role}=true")).items
        rules = [rule for part in parts for rule in part.get("rules") or ()]
        await client.patch(CLUSTER_ROLES, role, {"rules": rules})


async def _holder(tenant: Any, role: str, eventually: Eventually) -> ClusterConfig:
    """Return a client configuration of the administrator, once the API server grants this role to it."""
    pair = issue_client(tenant.authorities.client, user=_HOLDER.name)
    config = ClusterConfig(
        server=tenant.administrator.server,
        ca_data=tenant.administrator.ca_data,
        client_certificate=pair.certificate,
        client_key=pair.key,
    )
    async with (
        Client(tenant.administrator, field_manager="kplane") as client,
        Client(config, field_manager="kplane") as holder,
    ):
        await _aggregate(client)
        await bootstrap(client, admin=_HOLDER, admin_role=role, controllers=Subject("User", CONTROLLERS_USER))
        await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": _ACCOUNT, "namespace": "kube-system"}})
        await eventually(lambda: holder.list(CONFIG_MAPS, namespace="kube-system"))
    return config


@pytest.mark.parametrize("role", ["edit", "admin"])
async def test_holder_of_edit_or_admin_can_gain_all_rights(tenant: Any, role: str, eventually: Eventually) -> None:
    config = await _holder(tenant, role, eventually)
    as_account = replace(config, impersonation=Impersonation(f"system:serviceaccount:kube-system:{_ACCOUNT}"))
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    async with Client(config, field_manager="kplane") as holder, Client(as_account, field_manager="kplane") as account:
        # The holder itself cannot extend its rights.
        with pytest.raises(Forbidden):
            await holder.create(NAMESPACES, {"metadata": {"name": "by-holder"}})
        with pytest.raises(Forbidden):
            await holder.patch(CLUSTER_ROLES, role, {"rules": [everything]})
        # A ServiceAccount of kube-system can. The holder may impersonate it, or request a token of it.
        token = await request_token(
            holder, service_account=_ACCOUNT, lifetime=dt.timedelta(hours=1), namespace="kube-system"
        )
        assert token.value
        await account.patch(CLUSTER_ROLES, role, {"rules": [everything]})
        await eventually(lambda: holder.create(NAMESPACES, {"metadata": {"name": "by-holder"}}))


async def test_holder_of_view_cannot_read_secrets_write_or_impersonate(tenant: Any, eventually: Eventually) -> None:
    config = await _holder(tenant, "view", eventually)
    as_account = replace(config, impersonation=Impersonation(f"system:serviceaccount:kube-system:{_ACCOUNT}"))
    configmap = {"metadata": {"name": "by-holder", "namespace": "default"}}
    async with Client(config, field_manager="kplane") as holder, Client(as_account, field_manager="kplane") as account:
        for request in (
            holder.list(SECRETS),
            holder.create(CONFIG_MAPS, configmap),
            holder.create(NAMESPACES, {"metadata": {"name": "by-holder"}}),
            request_token(holder, service_account=_ACCOUNT, lifetime=dt.timedelta(hours=1), namespace="kube-system"),
            account.list(CONFIG_MAPS, namespace="kube-system"),
        ):
            with pytest.raises(Forbidden):
                await request
