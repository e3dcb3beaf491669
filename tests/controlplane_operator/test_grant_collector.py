"""GrantCollector: the deletion of a registration revokes the grants that its reconciler left."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from typing_extensions import override

from kplane.api import ControlPlaneRegistration, SecretReference
from kplane.controlplane_operator.gc import GrantCollector
from kplane.controlplane_operator.grants import Access, Account
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.registrations.identities import McmIdentities
from kplane.controlplane_operator.watch.informers import Informers
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.resources import NAMESPACES, ROLE_BINDINGS, ROLES
from kplane.provider.testing import FakeCluster

from .informing import informing

KINDS = (
    CONTROL_PLANES,
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
)
NAMESPACE = "kplane-cp-cp"


class CountedAccess(Access):
    """Access that counts the sweeps, each of which begins with `load`."""

    sweeps = 0

    @override
    async def load(self) -> None:
        self.sweeps += 1
        await super().load()


class World:
    """A management cluster with registrations, some of which have a grant."""

    def __init__(self, client: Client, stores: Stores, informers: Informers) -> None:
        self.client, self.informers = client, informers
        self.access = CountedAccess(client, shared=Account("kplane-system", "mcm"))
        identities = McmIdentities(client)
        self.collector = GrantCollector(self.informers, stores=stores, access=self.access, identities=identities)

    async def register(self, name: str, *, granted: bool) -> None:
        body = {"metadata": {"name": name}, "spec": {"controlPlaneRef": {"name": "cp"}}}
        stored = await self.client.create(CONTROL_PLANE_REGISTRATIONS, body)
        if granted:
            registration = ControlPlaneRegistration.model_validate(stored)
            secret = SecretReference(namespace=NAMESPACE, name=name)
            await self.access.grant(registration, secret=secret, to=self.access.shared)

    async def grants(self) -> list[list[dict[str, Any]]]:
        return [(await self.client.list(resource)).items for resource in (ROLES, ROLE_BINDINGS)]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    cluster = FakeCluster("management", kinds=KINDS)
    stores = Stores()
    async with informing(cluster.client, stores) as informers:
        instance = World(cluster.client, stores, informers)
        await instance.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        for name, granted in (("granted", True), ("bare", False)):
            await instance.register(name, granted=granted)
        task = asyncio.create_task(instance.collector.run(), name="collector")
        async with asyncio.timeout(10):
            await instance.collector.synced.wait()
        yield instance
        await end_tasks([task])
    await cluster.aclose()


async def test_deletion_of_registration_with_grants_revokes_them_at_once(
    world: World, eventually: Callable[..., Any]
) -> None:
    assert [len(objects) for objects in await world.grants()] == [1, 1]
    # No finalizer holds the registration, so its reconciler revokes nothing.
    await world.client.delete(CONTROL_PLANE_REGISTRATIONS, "granted")
    await eventually(world.grants, lambda grants: grants == [[], []])
    assert world.access.sweeps == 2


async def test_deletion_of_registration_without_grants_starts_no_sweep(
    world: World, eventually: Callable[..., Any]
) -> None:
    await world.client.delete(CONTROL_PLANE_REGISTRATIONS, "bare")
    # The lists take many turns of the event loop, in which a sweep would begin.
    async with asyncio.timeout(10):
        await world.informers.refresh()
    assert world.access.sweeps == 1
    await world.client.delete(CONTROL_PLANE_REGISTRATIONS, "granted")
    await eventually(lambda: world.access.sweeps, lambda sweeps: sweeps == 2)
