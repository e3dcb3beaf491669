"""Processes that share a fleet: each follows the Secrets of its clusters, and forgets lost clusters."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kplane.provider import Client, Cluster, ClusterConfig
from kplane.provider.cache.scope import CacheScope
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS, Resource
from kplane.provider.coordination.rendezvous import slot_of
from kplane.provider.fleet.clusters import Clusters
from kplane.provider.providers._support import object_backed
from kplane.provider.providers._support.object_backed import FromSecret, ObjectBackedProvider, ReadKubeconfig

SHARDS = 2
NAMES = ("a", "b", "g", "h")
"""Names of clusters in both shards."""


class World:
    """Objects, their Secrets, and the shards of this process."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.secrets = dict.fromkeys(NAMES, "first")
        self.shards: set[int] = set()
        self.watches: list[Watch] = []
        self.strays: list[str] = []
        """Secrets that were read for a cluster of another process."""

    def mine(self, name: str) -> bool:
        return slot_of(name, SHARDS) in self.shards

    def watched(self) -> list[str]:
        return sorted(watch.name for watch in self.watches if watch.resource == SECRETS and watch.name is not None)

    def put(self, name: str) -> None:
        self.objects[name] = {"metadata": {"name": name}}
        self._tell(CONFIG_MAPS, name, "MODIFIED", self.objects[name])

    def delete(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            self._tell(CONFIG_MAPS, name, "DELETED", None)

    def renew(self, name: str) -> None:
        self.secrets[name] += "+"
        self._tell(SECRETS, name, "MODIFIED", None)

    def secret(self, name: str) -> dict[str, Any]:
        document = ClusterConfig(f"https://{name}.test", token=f"{name}-{self.secrets[name]}").to_kubeconfig()
        text = json.dumps(document).encode()  # JSON is YAML
        return {"data": {"kubeconfig": base64.b64encode(text).decode()}}

    def _tell(self, resource: Resource, name: str, kind: str, found: dict[str, Any] | None) -> None:
        for watch in self.watches:
            if watch.resource == resource and watch.name in {None, name} and watch.handler is not None:
                watch.handler(SimpleNamespace(kind=kind, namespace="", name=name, object=found))


@dataclass(eq=False)
class Watch:
    """A fake informer."""

    world: World
    resource: Resource
    name: str | None
    handler: Callable[[Any], None] | None = None

    scope = CacheScope()

    def __post_init__(self) -> None:
        self.synced = asyncio.Event()
        if self.resource == SECRETS and not self.world.mine(str(self.name)):
            self.world.strays.append(str(self.name))

    def get(self, name: str, *, namespace: str = "") -> dict[str, Any] | None:
        del namespace
        return self.world.secret(name) if self.resource == SECRETS else self.world.objects.get(name)

    def entries(self) -> list[Any]:
        return [SimpleNamespace(key=("", name), namespace="", name=name) for name in self.world.objects]

    async def run(self, handler: Callable[[Any], None]) -> None:
        self.handler = handler
        self.world.watches.append(self)
        try:
            await asyncio.sleep(0)
            self.synced.set()
            for name in tuple(self.world.objects) if self.name is None else ():
                self.world.put(name)
            await asyncio.Event().wait()
        finally:
            self.world.watches.remove(self)


def plan(found: Any) -> FromSecret:
    name = found["metadata"]["name"]

    def make(values: Any, read: ReadKubeconfig) -> Cluster:
        return Cluster(name, config=read(values["kubeconfig"]), credentials=values)

    return FromSecret("ns", name, make)


@asynccontextmanager
async def followed(world: World) -> AsyncIterator[tuple[ObjectBackedProvider, Clusters]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            object_backed,
            "Informer",
            lambda client, resource, *, name=None, **_: Watch(client, resource, name),
        )
        provider = ObjectBackedProvider(
            cast("Client", world), CONFIG_MAPS, plan=plan, what="map", mine=world.mine, name=lambda _, name: name
        )
        fleet = Clusters(coordinated=True)
        task = asyncio.create_task(provider.run(fleet))
        await settled()
        yield provider, fleet
        task.cancel()
        await asyncio.wait([task])
        assert world.watches == []
        await fleet.aclose()


async def settled() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def tokens(fleet: Clusters) -> dict[str, str | None]:
    return {name: fleet.get(name).config.token for name in fleet.names()}


OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["take", "lose"]), st.integers(0, SHARDS - 1), st.integers(0, 5)),
    st.tuples(st.sampled_from(["put", "delete", "renew"]), st.sampled_from(NAMES), st.integers(0, 5)),
)


@given(st.lists(OPERATIONS, max_size=20))
def test_provider_watches_secrets_of_held_objects_in_any_order(operations: list[tuple[str, Any, int]]) -> None:
    assert {slot_of(name, SHARDS) for name in NAMES} == set(range(SHARDS))

    async def play() -> None:
        world = World()
        async with followed(world) as (provider, fleet):
            for operation, what, turns in operations:
                if operation in {"take", "lose"}:
                    world.shards = world.shards | {what} if operation == "take" else world.shards - {what}
                    provider.look_again()
                else:
                    getattr(world, operation)(what)
                for _ in range(turns):
                    await asyncio.sleep(0)
            await settled()
            held = sorted(name for name in world.objects if world.mine(name))
            assert world.watched() == held
            assert tokens(fleet) == {name: f"{name}-{world.secrets[name]}" for name in held}
            assert world.strays == []

    asyncio.run(play())


async def test_provider_keeps_no_credentials_of_lost_shards() -> None:
    def known() -> set[str | None]:
        gc.collect()
        return {obj.token for obj in gc.get_objects() if isinstance(obj, ClusterConfig)} & {"a-first", "b-first"}

    world = World()
    for name in NAMES:
        world.put(name)
    async with followed(world) as (provider, fleet):
        assert known() == set()
        world.shards = set(range(SHARDS))
        provider.look_again()
        await settled()
        assert sorted(tokens(fleet)) == sorted(NAMES)
        assert known() == {"a-first", "b-first"}
        world.shards.clear()
        provider.look_again()
        await settled()
        assert (world.watched(), fleet.names()) == ([], [])
        assert known() == set()
