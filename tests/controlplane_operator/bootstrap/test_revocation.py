"""What is left of our identities in a control plane once they were taken back: nothing, whoever did it."""

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
    """The operator's end."""


@dataclass
class _Deaths:
    """Kills at the write of that number, counted from one; counts on where that is zero."""

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
    """Tell whether an API server lets this account do what it needs; it hears of bindings a moment later."""
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
    """Tokens of the administrator and of the controllers that nobody has shown to the API server yet.

    It remembers for ten seconds whom it let in.
    """


async def _identities(client: Client, eventually: Eventually) -> _Identities:
    await bootstrap(client, admin=ADMIN_ACCOUNT, admin_role="cluster-admin", controllers=CONTROLLERS_ACCOUNT)
    accounts = (ADMIN_ACCOUNT.name, CONTROLLERS_ACCOUNT.name)
    for account in accounts:
        await eventually(lambda account=account: _may_revoke(client, account))
    unused = [await _as(client, account) for account in accounts]
    return _Identities(await _as(client, CONTROLLERS_ACCOUNT.name), tuple(unused))


async def _left(client: Client) -> set[str]:
    """Name what of our identities is there."""
    found = [
        *(await client.list(CLUSTER_ROLE_BINDINGS)).items,
        *(await client.list(SERVICE_ACCOUNTS, namespace="kplane-system")).items,
        *(await client.list(SECRETS, namespace="kube-system", label_selector=ADDON_LABEL)).items,
    ]
    names = {f"{item['kind']} {item['metadata']['name']}" for item in found}
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


async def test_the_controllers_take_everything_back_themselves_killed_at_any_write(
    tenant: Any, eventually: Eventually
) -> None:
    refused: list[ClusterConfig] = []
    async with Client(tenant.administrator, field_manager="kplane") as client:
        at, done = 0, False
        while not done:
            at += 1
            await revoke(client)
            identities = await _identities(client, eventually)
            refused += identities.unused
            await _join_tokens(client, 3)
            deaths = _Deaths(at)
            async with Client(identities.controllers, before_write=deaths, field_manager="kplane") as mortal:
                try:
                    await revoke_as_controllers(mortal)
                    done = True
                except _Killed:
                    pass
            if not done:
                async with Client(identities.controllers, field_manager="kplane") as again:
                    await revoke_as_controllers(again)
            assert await _left(client) == set()
        assert at >= 8
        for config in refused:
            await eventually(lambda config=config: _refused(config), timeout=120.0)
        async with Client(refused[-1], field_manager="kplane") as late:
            with pytest.raises(Unauthorized):
                await revoke_as_controllers(late)


async def test_the_old_tokens_stay_refused_when_the_api_server_is_adopted_again(
    tenant: Any, eventually: Eventually
) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        old = await _identities(client, eventually)
        async with Client(old.controllers, field_manager="kplane") as own:
            await revoke_as_controllers(own)
        new = await _identities(client, eventually)
        for config in old.unused:
            await eventually(lambda config=config: _refused(config), timeout=120.0)
        assert [await _refused(config) for config in new.unused] == [False, False]
        # What the last right was granted by goes with the next regular end.
        assert "controlplane-revocation" in {item["metadata"]["name"] for item in (await client.list(ROLES)).items}
        await revoke(client)
        assert await _left(client) == set()
        assert "controlplane-revocation" not in {item["metadata"]["name"] for item in (await client.list(ROLES)).items}


async def test_without_the_rights_that_it_was_given_it_says_so(tenant: Any, eventually: Eventually) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        identities = await _identities(client, eventually)
        await client.delete(CLUSTER_ROLE_BINDINGS, "controlplane-controllers")
        await eventually(lambda: _may_revoke(client, CONTROLLERS_ACCOUNT.name), lambda allowed: not allowed)
        async with Client(identities.controllers, field_manager="kplane") as own:
            with pytest.raises(Forbidden):
                await revoke_as_controllers(own)
        assert "ServiceAccount controlplane-controllers" in await _left(client)


async def test_more_join_tokens_than_anybody_would_list_go_too(tenant: Any, eventually: Eventually) -> None:
    async with Client(tenant.administrator, field_manager="kplane") as client:
        await _identities(client, eventually)
        await _join_tokens(client, 60)
        await revoke(client)
        assert await _left(client) == set()


async def test_what_the_tenant_has_besides_the_system_namespaces_is_not_read(
    tenant: Any, eventually: Eventually
) -> None:
    class Listless(Client):
        async def list(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("listed")

    async with Listless(tenant.administrator, field_manager="kplane") as client:
        await _identities(client, eventually)
        await client.delete(NAMESPACES, "kube-node-lease")
        await _identities(client, eventually)
        assert await client.exists(NAMESPACES, "kube-node-lease")
