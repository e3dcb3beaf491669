"""Informers of the management cluster: content of the stores, and problems for /readyz."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kplane.api.names import BUNDLE_LABEL, CONTROL_PLANE_LABEL
from kplane.controlplane_operator.kinds import (
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
    CONTROL_PLANES,
)
from kplane.controlplane_operator.watch.cache import Change, Key, Store
from kplane.controlplane_operator.watch.informers import Informers
from kplane.controlplane_operator.watch.stores import Stores
from kplane.provider import Client, Informer, Resource
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES
from kplane.provider.testing import FakeCluster

from .informing import informing

KINDS = (
    CONTROL_PLANES,
    CONTROL_PLANE_CLASSES,
    CONTROL_PLANE_ENDPOINTS,
    CONTROL_PLANE_REGISTRATIONS,
    CONTROL_PLANE_SNAPSHOTS,
)
OWN_NAMESPACE = "kplane-system"


class World:
    """A management cluster, the operator with its stores and informers, and a user with another client."""

    def __init__(self) -> None:
        self.cluster = FakeCluster("management", kinds=KINDS)
        self.operator = self.cluster.make_client()
        self.user = self.cluster.make_client()
        self.stores = Stores()

    def informing(self) -> contextlib.AbstractAsyncContextManager[Informers]:
        return informing(self.operator, self.stores, namespace=OWN_NAMESPACE)

    @contextlib.asynccontextmanager
    async def synced(self) -> AsyncIterator[Informers]:
        async with self.informing() as informers:
            async with asyncio.timeout(10):
                await informers.wait_synced()
            yield informers

    async def aclose(self) -> None:
        for client in (self.operator, self.user):
            await client.aclose()
        await self.cluster.aclose()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    instance = World()
    yield instance
    await instance.aclose()


async def create(client: Client, resource: Resource, name: str, **metadata: Any) -> None:
    await client.create(resource, {"metadata": {"name": name, **metadata}, "spec": {}})


def names(store: Store) -> set[str]:
    return {obj["metadata"]["name"] for obj in store}


async def test_stores_get_present_objects_of_each_kind(world: World) -> None:
    labels = {BUNDLE_LABEL: "true"}
    for resource in KINDS:
        await create(world.user, resource, "present")
    await create(world.user, NAMESPACES, "kplane-cp-acme", labels={CONTROL_PLANE_LABEL: "acme"})
    for namespace in (OWN_NAMESPACE, "of-a-user"):
        await create(world.user, NAMESPACES, namespace)
    await create(world.user, CONFIG_MAPS, "bundle", namespace=OWN_NAMESPACE, labels=labels)
    await create(world.user, CONFIG_MAPS, "settings", namespace=OWN_NAMESPACE)
    await create(world.user, CONFIG_MAPS, "foreign", namespace="of-a-user", labels=labels)
    async with world.synced():
        stores = {store.resource: names(store) for store in (*world.stores.cached(), world.stores.bundles)}
    expected = {resource: {"present"} for resource in KINDS}
    assert stores == {**expected, NAMESPACES: {"kplane-cp-acme"}, CONFIG_MAPS: {"bundle"}}


async def test_stores_get_own_writes_at_once_and_a_single_time(world: World, eventually: Callable[..., Any]) -> None:
    classes, changes = world.stores.classes, list[tuple[Key, bool]]()
    async with world.synced():
        classes.listen(lambda change: changes.append((change.key, change.new is not None)))
        await create(world.operator, CONTROL_PLANE_CLASSES, "own", finalizers=["example.com/held"])
        assert names(classes) == {"own"}
        await world.operator.patch(CONTROL_PLANE_CLASSES, "own", {"spec": {"addons": ["metrics"]}})
        assert [obj["metadata"]["name"] for obj in classes.by("addon", "metrics")] == ["own"]
        await world.operator.delete(CONTROL_PLANE_CLASSES, "own")
        (ending,) = classes
        assert "deletionTimestamp" in ending["metadata"]
        await world.operator.patch(CONTROL_PLANE_CLASSES, "own", {"metadata": {"finalizers": None}})
        assert names(classes) == set()
        # The watch sends the events of the operator's writes before that of the user's write.
        await create(world.user, CONTROL_PLANE_CLASSES, "later")
        await eventually(lambda: names(classes), lambda present: present == {"later"})
    own, later = ("", "own"), ("", "later")
    assert changes == [(own, True), (own, True), (own, True), (own, False), (later, True)]


async def test_stores_lose_objects_that_others_delete(world: World, eventually: Callable[..., Any]) -> None:
    for name in ("deleted", "kept"):
        await create(world.user, CONTROL_PLANES, name)
    async with world.synced():
        await world.user.delete(CONTROL_PLANES, "deleted")
        await eventually(lambda: names(world.stores.control_planes), lambda present: present == {"kept"})


async def test_applied_answer_that_is_stored_already_changes_nothing(world: World) -> None:
    changes: list[Change] = []
    async with world.synced():
        await create(world.operator, CONTROL_PLANES, "acme")
        former = await world.operator.get(CONTROL_PLANES, "acme")
        await world.operator.patch(CONTROL_PLANES, "acme", {"metadata": {"annotations": {"a": "b"}}})
        latest = await world.operator.get(CONTROL_PLANES, "acme")
        world.stores.control_planes.listen(changes.append)
        for answer in (latest, former):
            world.stores.control_planes.apply(answer)
    assert changes == []


async def test_refresh_returns_with_writes_of_other_clients(world: World) -> None:
    async with world.synced() as informers:
        for resource in KINDS:
            await create(world.user, resource, "written")
        async with asyncio.timeout(10):
            await informers.refresh()
        assert {store.resource for store in world.stores.cached() if names(store)} == set(KINDS)
        for resource in KINDS:
            await world.user.delete(resource, "written")
        async with asyncio.timeout(10):
            await informers.refresh()
        assert not any(map(names, world.stores.cached()))


async def test_problem_names_kind_that_was_not_listed_yet(world: World, eventually: Callable[..., Any]) -> None:
    unlisted = "the controlplanes of the management cluster were not listed yet"
    with world.cluster.outage():
        async with world.informing() as informers:
            assert informers.problem() == unlisted
            problem = await eventually(informers.problem, lambda text: text != unlisted)
    assert problem.startswith(f"{unlisted}: ")
    assert problem.endswith(" is down")
    async with world.synced() as informers:
        assert informers.problem() is None


async def test_problem_names_kind_whose_watch_fails_for_300_seconds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    down = {CONTROL_PLANE_SNAPSHOTS: 299.0, NAMESPACES: 12.0}
    monkeypatch.setattr(Informer, "down_seconds", property(lambda informer: down.get(informer.resource, 0.0)))
    monkeypatch.setattr(Informer, "error", property(lambda informer: f"{informer.resource.plural}: no route"))
    async with world.synced() as informers:
        assert informers.problem() is None
        down[CONTROL_PLANE_SNAPSHOTS] = 7501.0
        problem = informers.problem() or ""
    subject, _, rest = problem.partition(" since ")
    assert subject == "the controlplanesnapshots of the management cluster could not be watched"
    since, _, rest = rest.partition(", ")
    age = datetime.now(UTC) - datetime.strptime(since, "%Y-%m-%dT%H:%M:%S%z")
    assert timedelta(seconds=7501) <= age < timedelta(seconds=7530)
    assert rest == "7501 s ago: controlplanesnapshots: no route; what changed since then may be unknown"


async def test_invalid_object_is_logged_and_others_are_stored(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Such an object was stored before a rule of the CRD, and the operator finds it at each start."""
    secrets = {"bad": "a name", "good": {"namespace": "ns", "name": "own"}}
    for name, secret in secrets.items():
        spec = {"credentialsSecretRef": secret}
        await world.user.create(CONTROL_PLANE_ENDPOINTS, {"metadata": {"name": name}, "spec": spec})
    spec = {"controlPlaneRef": {"name": "cp"}}
    await world.user.create(CONTROL_PLANE_REGISTRATIONS, {"metadata": {"name": "reg"}, "spec": spec})
    async with world.synced() as informers:
        assert [obj["metadata"]["name"] for obj in world.stores.endpoints.by("credentials", "ns/own")] == ["good"]
        assert [obj["metadata"]["name"] for obj in world.stores.registrations.by("control plane", "cp")] == ["reg"]
        assert caplog.messages == ["failed to index ControlPlaneEndpoint bad by 'credentials'"]
        # The next list succeeds as well.
        async with asyncio.timeout(10):
            await informers.refresh()
        assert names(world.stores.endpoints) == {"bad", "good"}
        assert informers.problem() is None
