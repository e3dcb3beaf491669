"""Concurrent changes of grants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.api.names import GROUP
from kplane.controlplane_operator.gc import GrantWatcher
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, Resource
from kplane.provider.client.client import ObjectList
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)

pytestmark = pytest.mark.integration

_SECRET = SecretReference(name="any", namespace="default")


def access_of(client: Client) -> Access:
    return Access(client, shared=Account("kplane-system", "mcm"))


def registration(uid: str) -> ControlPlaneRegistration:
    return ControlPlaneRegistration.model_validate(
        {"metadata": {"name": "raced", "uid": uid}, "spec": {"controlPlaneRef": {"name": "raced"}}}
    )


class Meanwhile(Client):
    """Client that runs `happens` after its first list of Roles, before it returns the result."""

    happens: Callable[[], Awaitable[Any]] | None = None

    @override
    async def list(self, resource: Resource, **selection: Any) -> ObjectList:
        result = await super().list(resource, **selection)
        if resource == ROLES and self.happens is not None:
            happens, self.happens = self.happens, None
            await happens()
        return result


async def test_concurrent_revocations_of_a_grant_succeed(api_server: Handle) -> None:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        access = access_of(client)
        for secret in (_SECRET, SecretReference(name="other", namespace="default")):
            await access.grant(registration("taken-twice"), secret=secret, to=access.shared)
        await asyncio.gather(access.revoke("taken-twice"), access.revoke("taken-twice"))
        assert access.holders() == set()


async def test_load_keeps_grants_and_revocations_made_during_its_list(api_server: Handle) -> None:
    async with Meanwhile(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        access = access_of(client)
        await access.grant(registration("taken"), secret=_SECRET, to=access.shared)

        async def change() -> None:
            await access.grant(registration("given"), secret=_SECRET, to=access.shared)
            await access.revoke("taken")

        client.happens = change
        await access.load()
        assert access.holders() == {"given"}
        await access.revoke("given")


async def test_deleted_or_changed_rights_of_dedicated_mcm_are_restored(
    api_server: Handle, eventually: Callable[..., Any]
) -> None:
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client:
        stores, queues, identities = Stores(), Queues(), McmIdentities(client)
        spec = {"controlPlaneRef": {"name": "raced"}, "services": ["controllers"]}
        # The registration must exist in the API server: it owns the rights, and the garbage collector deletes objects
        # without their owner.
        created = await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": "raced"}, "spec": spec})
        stores.registrations.apply(created)
        owner = ControlPlaneRegistration.model_validate(created)
        account = Account("default", "dedicated-mcm")
        watcher = GrantWatcher(client, stores=stores, queues=queues, access=access_of(client), identities=identities)
        task = asyncio.create_task(watcher.run())
        await identities.ensure(owner, account=account)
        selector = f"{GROUP}/dedicated-uid={owner.metadata.uid}"
        for resource in (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS):
            (before,) = (await client.list(resource, label_selector=selector)).items
            namespace = before["metadata"].get("namespace")
            part: dict[str, Any] = {"rules": []} if "rules" in before else {"subjects": []}
            for action in ("delete", "change"):
                if action == "delete":
                    await client.delete(resource, before["metadata"]["name"], namespace=namespace)
                else:
                    await client.patch(resource, before["metadata"]["name"], part, namespace=namespace)
                assert await eventually(queues.mcms.take) == ("", owner.name)
                await identities.ensure(owner, account=account)
                (after,) = (await client.list(resource, label_selector=selector)).items
                assert [after.get(key) for key in ("rules", "roleRef", "subjects")] == [
                    before.get(key) for key in ("rules", "roleRef", "subjects")
                ]
                queues.mcms.done(("", owner.name))
        await client.delete(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)
        assert await eventually(queues.mcms.take) == ("", owner.name)
        await identities.ensure(owner, account=account)
        await client.get(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)
        queues.mcms.done(("", owner.name))
        # The operator's own writes enqueue no registration.
        assert len(queues.mcms) == 0
        task.cancel()
        await client.delete(CONTROL_PLANE_REGISTRATIONS, "raced")
        await identities.revoke(owner.metadata.uid or "")
        await identities.remove(account)
