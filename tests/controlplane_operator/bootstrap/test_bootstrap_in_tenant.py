"""Objects of the operator inside a control plane: creation, repair, replacement and removal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kplane.controlplane_operator.errors import BootstrapFailed, RoleMissing
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT, Subject, bootstrap
from kplane.controlplane_operator.tenant.revocation import revoke
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.pki.authorities import CONTROLLERS_USER
from kplane.pki.primitives import issue_client
from kplane.provider import Client, ClusterConfig, NotFound
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, NAMESPACES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden, Unauthorized

pytestmark = pytest.mark.integration

_ADMIN = Subject("User", "kplane:admin")
_CONTROLLERS = Subject("User", CONTROLLERS_USER)

Eventually = Callable[..., Awaitable[Any]]


async def _versions(client: Client) -> list[str]:
    objects = [
        *(await client.list(CLUSTER_ROLE_BINDINGS)).items,
        *(await client.list(SERVICE_ACCOUNTS)).items,
        *(await client.list(NAMESPACES)).items,
    ]
    return sorted(f"{item['metadata']['name']}={item['metadata']['resourceVersion']}" for item in objects)


async def test_bootstrap_writes_once_and_repairs_drift(tenant: Any) -> None:
    settings: dict[str, Any] = {
        "admin": ADMIN_ACCOUNT,
        "admin_role": "cluster-admin",
        "controllers": CONTROLLERS_ACCOUNT,
    }
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await bootstrap(client, **settings)
        versions = await _versions(client)
        await bootstrap(client, **settings)
        assert await _versions(client) == versions
        namespaces = {item["metadata"]["name"] for item in (await client.list(NAMESPACES)).items}
        assert namespaces >= {"default", "kube-system", "kube-public", "kube-node-lease", "kplane-system"}

        await client.delete(SERVICE_ACCOUNTS, ADMIN_ACCOUNT.name, namespace="kplane-system")
        await client.patch(CLUSTER_ROLE_BINDINGS, "controlplane-controllers", {"subjects": []})
        await client.delete(CLUSTER_ROLE_BINDINGS, "controlplane-admin")
        await bootstrap(client, **settings)
        assert (await client.get(SERVICE_ACCOUNTS, ADMIN_ACCOUNT.name, namespace="kplane-system"))["metadata"]["uid"]
        for name, account in (("controlplane-admin", ADMIN_ACCOUNT), ("controlplane-controllers", CONTROLLERS_ACCOUNT)):
            subjects = (await client.get(CLUSTER_ROLE_BINDINGS, name))["subjects"]
            assert subjects == [{"kind": "ServiceAccount", "name": account.name, "namespace": "kplane-system"}]


async def test_bootstrap_replaces_role_of_unpublished_administrator(tenant: Any, eventually: Eventually) -> None:
    administrator = issue_client(tenant.authorities.client, user=_ADMIN.name)
    as_admin = ClusterConfig(
        server=tenant.administrator.server,
        ca_data=tenant.administrator.ca_data,
        client_certificate=administrator.certificate,
        client_key=administrator.key,
    )
    settings: dict[str, Any] = {"admin": _ADMIN, "controllers": _CONTROLLERS}
    async with (
        Client(tenant.administrator, field_manager="kplane") as client,
        Client(as_admin, field_manager="kplane") as admin,
    ):

        async def allowed() -> bool:
            try:
                await admin.list(SECRETS)
            except Forbidden:
                return False
            return True

        # The API server decides by its cache of bindings, which is some milliseconds behind a write.
        async def becomes(expected: bool) -> None:
            await eventually(allowed, lambda found: found is expected)

        assert not await allowed()
        await bootstrap(client, admin_role="cluster-admin", **settings)
        await becomes(True)

        # The role of a binding is immutable, so that the binding is replaced.
        await bootstrap(client, admin_role="system:discovery", **settings)
        assert (await client.get(CLUSTER_ROLE_BINDINGS, "controlplane-admin"))["roleRef"]["name"] == "system:discovery"
        await becomes(False)

        # Before publication, the former binding is deleted even if the new role does not exist.
        await bootstrap(client, admin_role="cluster-admin", **settings)
        await becomes(True)
        with pytest.raises(RoleMissing):
            await bootstrap(client, admin_role="no-such-role", **settings)
        await becomes(False)


async def test_published_administrator_keeps_role_until_new_role_exists(tenant: Any) -> None:
    settings: dict[str, Any] = {"controllers": _CONTROLLERS, "published": True}

    async def bound() -> tuple[str, str]:
        binding = await client.get(CLUSTER_ROLE_BINDINGS, "controlplane-admin")
        return binding["roleRef"]["name"], binding["subjects"][0]["name"]

    async with Client(tenant.administrator, field_manager="kplane") as client:
        await bootstrap(client, admin=_ADMIN, admin_role="edit", **settings)
        with pytest.raises(RoleMissing, match="the administrator keeps ClusterRole edit until then"):
            await bootstrap(client, admin=_ADMIN, admin_role="no-such-role", **settings)
        assert await bound() == ("edit", _ADMIN.name)
        # A change of auth.model in the same edit gives the new identity the same role.
        with pytest.raises(RoleMissing):
            await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="no-such-role", **settings)
        assert await bound() == ("edit", ADMIN_ACCOUNT.name)
        await client.create(CLUSTER_ROLES, {"metadata": {"name": "no-such-role"}, "rules": []})
        await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="no-such-role", **settings)
        assert await bound() == ("no-such-role", ADMIN_ACCOUNT.name)
        await client.delete(CLUSTER_ROLES, "no-such-role")
        await client.delete(CLUSTER_ROLE_BINDINGS, "controlplane-admin")


async def test_missing_role_is_named_and_controllers_keep_their_rights(tenant: Any, eventually: Eventually) -> None:
    controllers = issue_client(tenant.authorities.client, user=CONTROLLERS_USER)
    as_controllers = ClusterConfig(
        server=tenant.administrator.server,
        ca_data=tenant.administrator.ca_data,
        client_certificate=controllers.certificate,
        client_key=controllers.key,
    )
    async with (
        Client(tenant.administrator, field_manager="kplane") as client,
        Client(as_controllers, field_manager="kplane") as at_work,
    ):
        with pytest.raises(BootstrapFailed, match="no-such-role"):
            await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="no-such-role", controllers=_CONTROLLERS)
        await eventually(lambda: at_work.list(SECRETS))
        with pytest.raises(NotFound):
            await client.get(CLUSTER_ROLE_BINDINGS, "controlplane-admin")


async def test_tokens_have_granted_lifetime_and_end_on_revocation(tenant: Any) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="cluster-admin", controllers=_CONTROLLERS)
        request_time = dt.datetime.now(dt.UTC)
        token = await request_token(client, service_account=ADMIN_ACCOUNT.name, lifetime=dt.timedelta(hours=2))
        assert abs(token.expires_at - request_time - dt.timedelta(hours=2)) < dt.timedelta(minutes=1)
        assert token.value not in repr(token)

        config = ClusterConfig(
            server=tenant.administrator.server, ca_data=tenant.administrator.ca_data, token=token.value
        )
        async with Client(config, field_manager="kplane") as admin:
            await admin.create(NAMESPACES, {"metadata": {"name": "by-admin"}})
            await revoke(client)
            await revoke(client)
            # The API server caches the identity of a token for some seconds, but this identity has no rights any more.
            with pytest.raises((Forbidden, Unauthorized)):
                await admin.list(NAMESPACES)
