"""Revocation of the operator's identities in a control plane, by an administrator or by the controllers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kplane.api.names import ADDON_LABEL
from kplane.controlplane_operator.tenant.bootstrap import ADMIN_ACCOUNT, CONTROLLERS_ACCOUNT, JOIN_ADDON, bootstrap
from kplane.controlplane_operator.tenant.revocation import revoke, revoke_as_controllers
from kplane.controlplane_operator.tenant.tokens import request_token
from kplane.provider import Client, ClusterConfig
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, NAMESPACES, ROLES, SECRETS, SERVICE_ACCOUNTS
from kplane.provider.errors import Forbidden, Unauthorized

pytestmark = pytest.mark.integration

Eventually = Callable[..., Awaitable[Any]]
_HOUR = dt.timedelta(hours=1)


class _Killed(Exception):
    """Raised at the write at which the operator is killed."""


@dataclass
class _Deaths:
    """Kills the operator at write number `at`, counted from 1. Zero only counts writes."""

    at: int = 0
    writes: int = 0

    def __call__(self) -> None:
        self.writes += 1
        if self.writes == self.at:
            raise _Killed


async def _as(administrator: Client, account: str) -> ClusterConfig:
    token = await request_token(administrator, service_account=account, lifetime=_HOUR)
    config = administrator.config
    return ClusterConfig(server=config.server, ca_data=config.ca_data, token=token.value)


async def _may_revoke(administrator: Client, account: str) -> bool:
    """Return whether this account may revoke identities. The API server sees a binding a moment after its write."""
    attributes = {"verb": "delete", "resource": "serviceaccounts", "namespace": "kplane-system"}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:kplane-system:{account}", "resourceAttributes": attributes},
    }
    answer = await administrator.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review)
    return bool(answer["status"]["allowed"])


@dataclass(frozen=True)
class _Identities:
    controllers: ClusterConfig
    unused: tuple[ClusterConfig, ...]
    """Tokens of the administrator and of the controllers that the API server has not authenticated yet.

    The API server caches a successful authentication for ten seconds.
    """


async def _identities(client: Client, eventually: Eventually) -> _Identities:
    await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="cluster-admin", controllers=CONTROLLERS_ACCOUNT)
    accounts = (ADMIN_ACCOUNT.name, CONTROLLERS_ACCOUNT.name)
    for account in accounts:
        await eventually(lambda account=account: _may_revoke(client, account))
    unused = [await _as(client, account) for account in accounts]
    return _Identities(await _as(client, CONTROLLERS_ACCOUNT.name), tuple(unused))


async def _left(client: Client) -> set[str]:
    """Return the remaining objects of the operator's identities, by kind and name."""
    objects = [
        *(await client.list(CLUSTER_ROLE_BINDINGS)).items,
        *(await client.list(SERVICE_ACCOUNTS, namespace="kplane-system")).items,
        *(await client.list(SECRETS, namespace="kube-system", label_selector=ADDON_LABEL)).items,
    ]
    names = {f"{item['kind']} {item['metadata']['name']}" for item in objects}
    return {name for name in names if "controlplane-" in name or name.startswith("Secret ")}


async def _join_tokens(client: Client, count: int) -> None:
    for number in range(count):
        metadata = {"name": f"token-{number}", "namespace": "kube-system", "labels": {ADDON_LABEL: JOIN_ADDON}}
        await client.apply(SECRETS, {"metadata": metadata}, force=True)


async def _refused(config: ClusterConfig) -> bool:
    async with Client(config, field_manager="kplane") as client:
        try:
            await client.request("GET", "/version")
        except Unauthorized:
            return True
    return False


async def test_controllers_revoke_all_identities_if_killed_at_any_write(tenant: Any, eventually: Eventually) -> None:
    configs: list[ClusterConfig] = []
    async with Client(tenant.administrator, field_manager="kplane") as client:
        at, done = 0, False
        while not done:
            at += 1
            await revoke(client)
            identities = await _identities(client, eventually)
            configs += identities.unused
            await _join_tokens(client, 3)
            deaths = _Deaths(at)
            async with Client(identities.controllers, before_write=deaths, field_manager="kplane") as mortal:
                try:
                    await revoke_as_controllers(mortal)
                    done = True
                except _Killed:
                    pass
            if not done:
                async with Client(identities.controllers, field_manager="kplane") as successor:
                    await revoke_as_controllers(successor)
            assert await _left(client) == set()
        assert at >= 8
        for config in configs:
            await eventually(lambda config=config: _refused(config), timeout=120.0)
        async with Client(configs[-1], field_manager="kplane") as late_client:
            with pytest.raises(Unauthorized):
                await revoke_as_controllers(late_client)


async def test_old_tokens_stay_refused_after_a_new_bootstrap(tenant: Any, eventually: Eventually) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        old = await _identities(client, eventually)
        async with Client(old.controllers, field_manager="kplane") as own:
            await revoke_as_controllers(own)
        new = await _identities(client, eventually)
        for config in old.unused:
            await eventually(lambda config=config: _refused(config), timeout=120.0)
        assert [await _refused(config) for config in new.unused] == [False, False]
        # The next `revoke` deletes the Role that granted the last right.
        assert "controlplane-revocation" in {item["metadata"]["name"] for item in (await client.list(ROLES)).items}
        await revoke(client)
        assert await _left(client) == set()
        assert "controlplane-revocation" not in {item["metadata"]["name"] for item in (await client.list(ROLES)).items}


async def test_revoke_raises_forbidden_without_binding_of_controllers(tenant: Any, eventually: Eventually) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        identities = await _identities(client, eventually)
        await client.delete(CLUSTER_ROLE_BINDINGS, "controlplane-controllers")
        await eventually(lambda: _may_revoke(client, CONTROLLERS_ACCOUNT.name), lambda allowed: not allowed)
        async with Client(identities.controllers, field_manager="kplane") as own:
            with pytest.raises(Forbidden):
                await revoke_as_controllers(own)
        assert "ServiceAccount controlplane-controllers" in await _left(client)


async def test_revoke_deletes_60_join_tokens(tenant: Any, eventually: Eventually) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await _identities(client, eventually)
        await _join_tokens(client, 60)
        await revoke(client)
        assert await _left(client) == set()


async def test_bootstrap_restores_namespace_without_list_requests(tenant: Any, eventually: Eventually) -> None:
    class Listless(Client):
        async def list(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("listed")

    async with Listless(tenant.administrator, field_manager="kplane") as client:
        await _identities(client, eventually)
        await client.delete(NAMESPACES, "kube-node-lease")
        await _identities(client, eventually)
        assert await client.exists(NAMESPACES, "kube-node-lease")
