"""Rights of a dedicated mcm that a user deletes or changes."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import pytest

from kplane.api import ControlPlaneRegistration
from kplane.api.names import GROUP, REGISTRATION_LABEL
from kplane.controlplane_operator.grants import Account
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS
from kplane.controlplane_operator.registrations.identities import IDENTITY_UID_LABEL, McmIdentities
from kplane.controlplane_operator.registrations.watches import enqueue_granted
from kplane.controlplane_operator.watch.informers import RBAC_KINDS
from kplane.controlplane_operator.watch.stores import Stores
from kplane.embedded.handle import Handle
from kplane.provider import Cache, CacheScope, Client, Cluster, ClusterConfig, Event
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from kplane.provider.controllers.handlers import Delayed

pytestmark = pytest.mark.integration


async def test_deleted_or_changed_rights_of_dedicated_mcm_are_restored(api_server: Handle) -> None:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client,
        contextlib.aclosing(Cache(client, scope_of=lambda _: CacheScope(label_selector=REGISTRATION_LABEL))) as cache,
    ):
        stores, enqueued, identities = Stores(), asyncio.Queue[str](), McmIdentities(client, cache)
        spec = {"controlPlaneRef": {"name": "raced"}, "services": ["controllers"]}
        # The registration must exist in the API server: it owns the rights, and the garbage collector deletes objects
        # without their owner.
        created = await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": "raced"}, "spec": spec})
        stores.registrations.apply(created)
        owner = ControlPlaneRegistration.model_validate(created)
        account = Account("default", "dedicated-mcm")
        granted = enqueue_granted(stores, label=IDENTITY_UID_LABEL)

        def enqueue(event: Event) -> None:
            for delayed in granted(cast("Cluster", None), event):
                assert isinstance(delayed, Delayed)
                enqueued.put_nowait(delayed.request.name)

        async def repaired() -> None:
            """Wait until the registration is enqueued, and repair its rights."""
            async with asyncio.timeout(30.0):
                assert await enqueued.get() == owner.name
            await identities.ensure(owner, account=account)

        for resource in RBAC_KINDS:
            cache.informer(resource).add_handler(enqueue)
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
                await repaired()
                (after,) = (await client.list(resource, label_selector=selector)).items
                assert [after.get(key) for key in ("rules", "roleRef", "subjects")] == [
                    before.get(key) for key in ("rules", "roleRef", "subjects")
                ]
        await client.delete(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)
        await repaired()
        await client.get(SERVICE_ACCOUNTS, account.name, namespace=account.namespace)
        # A repair may enqueue the registration once more, which then writes nothing.
        await client.delete(CONTROL_PLANE_REGISTRATIONS, "raced")
        await identities.revoke(owner.metadata.uid or "")
        await identities.remove(account)
