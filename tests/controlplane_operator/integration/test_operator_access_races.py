"""Rights of a dedicated mcm that a user deletes or changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from kplane.api import ControlPlaneRegistration
from kplane.api.names import GROUP, REGISTRATION_LABEL
from kplane.controlplane_operator.gc import watch_grants
from kplane.controlplane_operator.grants import Account
from kplane.controlplane_operator.kinds import CONTROL_PLANE_REGISTRATIONS
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.watch.queues import Queues
from kplane.controlplane_operator.watch.stores import Stores
from kplane.embedded.handle import Handle
from kplane.provider import Cache, CacheScope, Client, ClusterConfig
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)

pytestmark = pytest.mark.integration


async def test_deleted_or_changed_rights_of_dedicated_mcm_are_restored(
    api_server: Handle, eventually: Callable[..., Any]
) -> None:
    async with (
        Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kplane") as client,
        contextlib.aclosing(Cache(client, scope_of=lambda _: CacheScope(label_selector=REGISTRATION_LABEL))) as cache,
    ):
        stores, queues, identities = Stores(), Queues(), McmIdentities(client, cache)
        spec = {"controlPlaneRef": {"name": "raced"}, "services": ["controllers"]}
        # The registration must exist in the API server: it owns the rights, and the garbage collector deletes objects
        # without their owner.
        created = await client.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": "raced"}, "spec": spec})
        stores.registrations.apply(created)
        owner = ControlPlaneRegistration.model_validate(created)
        account = Account("default", "dedicated-mcm")
        watch_grants(cache, stores=stores, queues=queues)
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
        # A repair may enqueue the registration once more, which then writes nothing.
        await client.delete(CONTROL_PLANE_REGISTRATIONS, "raced")
        await identities.revoke(owner.metadata.uid or "")
        await identities.remove(account)
