"""Rights of mcm: written once, restored after drift, and revoked with their registration."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.controlplane_operator.gc import GrantCollector
from kplane.controlplane_operator.grants import GRANT_UID_LABEL, Access, Account
from kplane.controlplane_operator.registrations.identities import IDENTITY_UID_LABEL, McmIdentities
from kplane.controlplane_operator.registrations.watches import enqueue_granted
from kplane.controlplane_operator.watch.informers import RBAC_KINDS, Informers, cache_scopes
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Cache, Resource
from kplane.provider.client.resources import CLUSTER_ROLES, NAMESPACES, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.testing import FakeCluster

SHARED = Account("kplane-system", "mcm")
DEDICATED = Account("kplane-cp-acme", "mcm-acme")
FIRST = SecretReference(name="first", namespace="kplane-cp-acme")
SECOND = SecretReference(name="second", namespace="kplane-cp-acme")
Written = list[tuple[str, str]]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    fake = FakeCluster("management")
    fake.wire(Wiring(cache_scopes=cache_scopes("kplane-system"), field_manager="kplane"))
    async with contextlib.aclosing(fake):
        for namespace in ("kplane-cp-acme", "kplane-cp-other"):
            await fake.client.create(NAMESPACES, {"metadata": {"name": namespace}})
        yield fake


@pytest.fixture
def access(cluster: FakeCluster) -> Access:
    return Access(cluster.client, cluster.cache, shared=SHARED)


@pytest.fixture
def identities(cluster: FakeCluster) -> McmIdentities:
    return McmIdentities(cluster.client, cluster.cache)


def registration(name: str, *, uid: str) -> ControlPlaneRegistration:
    return ControlPlaneRegistration.model_validate(
        {"metadata": {"name": name, "uid": uid}, "spec": {"controlPlaneRef": {"name": name}}}
    )


ACME = registration("acme", uid="uid-acme")
OTHER = registration("other", uid="uid-other")


def writes(cluster: FakeCluster) -> Written:
    """Return the list to which each later write of the client is added."""
    written: Written = []
    cluster.client.observe_writes(lambda write: written.append((write.resource.kind, write.name)))
    return written


async def names(cluster: FakeCluster, resource: Resource) -> set[str]:
    return {item["metadata"]["name"] for item in (await cluster.client.list(resource)).items}


async def content(cluster: FakeCluster) -> dict[str, Any]:
    """Return the content of all RBAC objects by kind and name."""
    return {
        f"{resource.kind}/{item['metadata']['name']}": [item.get(part) for part in ("rules", "roleRef", "subjects")]
        for resource in RBAC_KINDS
        for item in (await cluster.client.list(resource)).items
    }


async def test_grant_writes_role_and_binding_once(cluster: FakeCluster, access: Access) -> None:
    written = writes(cluster)
    for _ in range(2):
        await access.grant(ACME, secret=FIRST, to=SHARED)
    assert [kind for kind, _ in written] == ["Role", "RoleBinding"]
    # The next operator finds the grant.
    async with contextlib.aclosing(Cache(cluster.client, scope_of=cluster.cache_scope)) as cache:
        successor = Access(cluster.client, cache, shared=SHARED)
        await successor.grant(ACME, secret=FIRST, to=SHARED)
        assert await successor.holders() == {"uid-acme"}
    assert len(written) == 2


async def test_grant_to_another_account_replaces_subject(cluster: FakeCluster, access: Access) -> None:
    await access.grant(ACME, secret=FIRST, to=SHARED)
    await access.grant(ACME, secret=FIRST, to=DEDICATED)
    (binding,) = (await cluster.client.list(ROLE_BINDINGS)).items
    assert binding["subjects"] == [DEDICATED.subject()]


@pytest.mark.parametrize("resource", [ROLES, ROLE_BINDINGS])
@pytest.mark.parametrize("change", ["delete", "content", "label"])
async def test_grant_restores_changed_role_and_binding(
    cluster: FakeCluster, access: Access, resource: Resource, change: str
) -> None:
    await access.grant(ACME, secret=FIRST, to=SHARED)
    before, (name,) = await content(cluster), await names(cluster, resource)
    if change == "delete":
        await cluster.client.delete(resource, name, namespace=FIRST.namespace)
    else:
        drift: dict[str, Any] = {"metadata": {"labels": None}}
        if change == "content":
            drift = {"metadata": {"labels": {"user": "label"}}, "rules": [], "subjects": []}
        await cluster.client.patch(resource, name, drift, namespace=FIRST.namespace)
    await access.grant(ACME, secret=FIRST, to=SHARED)
    restored = await cluster.client.get(resource, name, namespace=FIRST.namespace)
    part = "rules" if resource == ROLES else "subjects"
    assert restored[part] == before[f"{resource.kind}/{name}"][0 if resource == ROLES else 2]
    assert restored["metadata"]["labels"].get("user") == ("label" if change == "content" else None)
    assert await access.holders() == {"uid-acme"}


async def test_revoke_deletes_grants_of_the_registration_except_kept_one(cluster: FakeCluster, access: Access) -> None:
    for owner in (ACME, OTHER):
        await access.grant(owner, secret=FIRST, to=SHARED)
    kept = await names(cluster, ROLES)
    await access.grant(ACME, secret=SECOND, to=SHARED)
    added = await names(cluster, ROLES) - kept
    await access.revoke("uid-acme", keep=SECOND)
    assert added < await names(cluster, ROLES) == await names(cluster, ROLE_BINDINGS)
    assert await access.holders() == {"uid-acme", "uid-other"}
    written = writes(cluster)
    await access.revoke("uid-acme", keep=SECOND)
    assert written == []
    await asyncio.gather(access.revoke("uid-acme"), access.revoke("uid-acme"))
    assert await access.holders() == {"uid-other"}


async def test_revoke_deletes_binding_whose_role_a_user_deleted(cluster: FakeCluster, access: Access) -> None:
    await access.grant(ACME, secret=FIRST, to=SHARED)
    (name,) = await names(cluster, ROLES)
    await cluster.client.delete(ROLES, name, namespace=FIRST.namespace)
    await access.revoke("uid-acme")
    assert await names(cluster, ROLE_BINDINGS) == set()


async def test_identity_is_written_once_and_again_after_removal(
    cluster: FakeCluster, identities: McmIdentities
) -> None:
    written = writes(cluster)
    for _ in range(2):
        await identities.ensure(ACME, account=DEDICATED)
    kinds = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"]
    assert [kind for kind, _ in written] == kinds
    # The removal of the control plane removes the account. A control plane of the same name may follow at once.
    await identities.remove(DEDICATED)
    await identities.ensure(ACME, account=DEDICATED)
    assert [kind for kind, _ in written[len(kinds) :]] == ["ServiceAccount"] * 2
    # No token was requested since, so a request is due at once.
    assert identities.renewed_in(DEDICATED) == 0.0


async def test_identity_of_earlier_operator_gets_label_of_registration(
    cluster: FakeCluster, identities: McmIdentities
) -> None:
    existing = {"metadata": {**DEDICATED._asdict(), "labels": {"user": "label"}}}
    await cluster.client.apply(SERVICE_ACCOUNTS, existing, field_manager="user")
    await identities.ensure(ACME, account=DEDICATED)
    account: dict[str, Any] = await cluster.client.get(SERVICE_ACCOUNTS, DEDICATED.name, namespace=DEDICATED.namespace)
    assert account["metadata"]["labels"][IDENTITY_UID_LABEL] == "uid-acme"
    assert account["metadata"]["labels"]["user"] == "label"
    assert account["automountServiceAccountToken"] is False


async def test_revoked_identity_leaves_account_without_rights(cluster: FakeCluster, identities: McmIdentities) -> None:
    await identities.ensure(ACME, account=DEDICATED)
    await identities.ensure(OTHER, account=Account("kplane-cp-other", "mcm-other"))
    assert [await identities.is_holder(uid) for uid in ("uid-acme", "uid-foreign")] == [True, False]
    # A binding without its role is a right as well.
    await cluster.client.delete(CLUSTER_ROLES, min(await names(cluster, CLUSTER_ROLES)))
    for uid in ("uid-acme", "uid-other"):
        await identities.revoke(uid)
    assert await identities.holders() == set()
    assert {key.partition("/")[0] for key in await content(cluster)} == {"ServiceAccount"}


async def test_deleted_or_changed_rights_enqueue_their_registration(
    cluster: FakeCluster, access: Access, identities: McmIdentities, eventually: Any
) -> None:
    stores, enqueued = Stores(), list[tuple[str, str]]()
    metadata = {"name": "acme", "uid": "uid-acme", "resourceVersion": "1"}
    stores.registrations.apply({"metadata": metadata, "spec": {"controlPlaneRef": {"name": "acme"}}})
    for label, controller in ((GRANT_UID_LABEL, "registration"), (IDENTITY_UID_LABEL, "mcm")):
        handler = enqueue_granted(stores, label=label)
        for resource in RBAC_KINDS:
            cluster.cache.informer(resource).add_handler(
                lambda event, handler=handler, controller=controller: enqueued.extend(
                    (controller, delayed.request.name) for delayed in handler(cluster, event)
                )
            )
    await access.grant(ACME, secret=FIRST, to=SHARED)
    await identities.ensure(ACME, account=DEDICATED)
    # The operator's own writes enqueue no registration.
    assert enqueued == []
    for item in (await cluster.client.list(ROLES)).items:
        place = item["metadata"]
        await cluster.client.patch(ROLES, place["name"], {"rules": []}, namespace=place["namespace"])
    await eventually(lambda: set(enqueued), lambda found: found == {("registration", "acme"), ("mcm", "acme")})
    enqueued.clear()
    await cluster.client.delete(SERVICE_ACCOUNTS, DEDICATED.name, namespace=DEDICATED.namespace)
    await eventually(lambda: enqueued, lambda found: found == [("mcm", "acme")])


async def test_collector_revokes_rights_of_deleted_registration(
    cluster: FakeCluster, access: Access, identities: McmIdentities, eventually: Any
) -> None:
    stores = Stores()
    for owner in (ACME, OTHER):
        await access.grant(owner, secret=FIRST, to=SHARED)
        await identities.ensure(owner, account=DEDICATED)
    present = [
        {"metadata": {"name": owner.name, "uid": owner.metadata.uid, "resourceVersion": "1"}} for owner in (ACME, OTHER)
    ]
    for obj in present:
        stores.registrations.apply(obj)
    informers = cast("Informers", SimpleNamespace(refresh=lambda: asyncio.sleep(0)))
    collector = GrantCollector(informers, stores=stores, access=access, identities=identities)
    task = asyncio.create_task(collector.run())
    try:
        await collector.synced.wait()
        assert await access.holders() == await identities.holders() == {"uid-acme", "uid-other"}
        stores.registrations.remove(present[0])
        await eventually(lambda: names(cluster, CLUSTER_ROLES), lambda roles: len(roles) == 1)
        assert await access.holders() == await identities.holders() == {"uid-other"}
    finally:
        task.cancel()
