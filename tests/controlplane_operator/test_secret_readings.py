"""Secrets of sleeping control planes are read periodically, and watched again after the wake."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kplane.api.names import CONTROL_PLANE_LABEL
from kplane.controlplane_operator.watch import secrets
from kplane.controlplane_operator.watch.cache import MergedStore
from kplane.controlplane_operator.watch.secrets import OWN, SecretWatches, Watched
from kplane.embedded.handle import Handle
from kplane.provider import Client, ClusterConfig, ClusterNotReady
from kplane.provider.aio.cancellation import end_tasks
from kplane.provider.client.resources import NAMESPACES, SECRETS

pytestmark = pytest.mark.integration

NAMESPACE = "kplane-cp-dormant"
WATCHED = Watched(NAMESPACE, OWN)


class World:
    def __init__(self, client: Client) -> None:
        self.client, self.store, self.asleep = client, MergedStore(SECRETS), True
        self.watches = SecretWatches(client, {OWN: self.store}, asleep=lambda _: self.asleep)

    async def keep(self, name: str, **labels: str) -> None:
        metadata = {"name": name, "namespace": NAMESPACE, "labels": {CONTROL_PLANE_LABEL: "dormant"} | labels}
        await self.client.apply(SECRETS, {"metadata": metadata}, force=True)

    async def drop(self, name: str) -> None:
        await self.client.delete(SECRETS, name, namespace=NAMESPACE)

    def names(self) -> list[str]:
        return sorted(obj["metadata"]["name"] for obj in self.store)

    def followed(self) -> bool:
        return any(task.get_name() == f"follow Secrets {OWN} in {NAMESPACE}" for task in asyncio.all_tasks())


@pytest.fixture
async def world(api_server: Handle, namespaces_go_at_once: Any, eventually: Callable[..., Any]) -> AsyncIterator[World]:
    config = ClusterConfig.load(api_server.admin_kubeconfig)
    async with namespaces_go_at_once(config), Client(config, field_manager="kplane") as client:
        await client.apply(NAMESPACES, {"metadata": {"name": NAMESPACE}}, force=True)
        yield World(client)
        await client.delete(NAMESPACES, NAMESPACE)
        # The next test creates the namespace again, so the deletion must be complete.
        named = f"metadata.name={NAMESPACE}"
        await eventually(lambda: client.list(NAMESPACES, field_selector=named), lambda listed: not listed.items)


@contextlib.asynccontextmanager
async def running(watches: SecretWatches) -> AsyncIterator[None]:
    task = asyncio.create_task(watches.run())
    try:
        yield
    finally:
        await end_tasks([task])


async def test_secrets_are_polled_during_sleep_and_watched_after_wake(
    world: World, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "_READ_SECONDS", 0.0)
    monkeypatch.setattr(secrets, "_COMPARE_SECONDS", 0.1)
    await world.keep("authorities")
    await world.watches.known(WATCHED)
    assert (world.names(), world.followed(), world.watches.is_known(WATCHED)) == (["authorities"], False, True)
    async with running(world.watches):
        await world.keep("kubeconfig")
        await eventually(world.names, lambda found: found == ["authorities", "kubeconfig"])
        await world.drop("authorities")
        await eventually(world.names, lambda found: found == ["kubeconfig"])
        assert not world.followed()

        world.asleep = False
        monkeypatch.setattr(secrets, "_READ_SECONDS", 600.0)
        await world.watches.turn(WATCHED)
        assert (world.names(), world.watches.is_known(WATCHED)) == (["kubeconfig"], True)
        assert world.followed()
        await world.keep("late")
        await eventually(world.names, lambda found: found == ["kubeconfig", "late"])

        # Known Secrets stay known, and listeners get no second change.
        changes: list[Any] = []
        world.store.listen(changes.append)
        world.asleep = True
        await eventually(lambda: world.watches._watches[WATCHED].informer.synced.is_set())
        await world.watches.turn(WATCHED)
        assert (world.names(), world.followed(), changes) == (["kubeconfig", "late"], False, [])
        await world.watches.stop(WATCHED)
        assert (world.names(), world.watches.is_known(WATCHED)) == ([], False)
    for name in ("kubeconfig", "late"):
        await world.drop(name)


async def test_secret_deleted_during_sleep_leaves_store_at_wake(world: World, eventually: Callable[..., Any]) -> None:
    for name in ("authorities", "kubeconfig"):
        await world.keep(name)
    await world.watches.known(WATCHED)
    async with running(world.watches):
        await world.drop("kubeconfig")
        assert world.names() == ["authorities", "kubeconfig"]
        world.asleep = False
        await world.watches.turn(WATCHED)
        await eventually(world.names, lambda found: found == ["authorities"], timeout=20)
        await world.watches.stop(WATCHED)
    await world.drop("authorities")


async def test_failed_read_is_reported_and_next_read_succeeds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(secrets, "_ANSWER_SECONDS", 0.0)
        with pytest.raises(ClusterNotReady, match="no answer in time"):
            await world.watches.known(WATCHED)
        assert (world.watches.is_known(WATCHED), world.watches.error(WATCHED)) == (False, "no answer in time")
    await world.watches.known(WATCHED)
    assert (world.watches.is_known(WATCHED), world.watches.error(WATCHED)) == (True, "")
