"""Clusters without servers for tests of controllers, and their provider."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kplane.provider import Cluster, ClusterConfig, Manager, Resource
from kplane.provider.cache.entry import EntryReader
from kplane.provider.cache.event import Event
from kplane.provider.client.resources import CONFIG_MAPS


class Mirror:
    """A fake informer: stores the objects that a test puts in, and notifies handlers of changes at once."""

    def __init__(self, resource: Resource, *, metadata_only: bool) -> None:
        self.reader = EntryReader(resource, server="fake", metadata_only=metadata_only)
        self.entries: dict[Any, Any] = {}
        self.handlers: list[Callable[[Event], None]] = []

    def add_handler(self, handler: Callable[[Event], None]) -> Mirror._Registration:
        self.handlers.append(handler)
        for entry in self.entries.values():
            handler(Event("ADDED", entry, reader=self.reader, initial=True))
        registration = self._Registration(self, handler)
        registration.synced.set()
        return registration

    def put(self, name: str, *, namespace: str = "ns", **fields: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Any", "metadata": {"name": name, "namespace": namespace}, **fields}
        body["metadata"].update(fields.get("metadata", {}) | {"name": name, "namespace": namespace})
        entry = self.reader.entry(json.dumps(body).encode())
        old = self.entries.get(entry.key)
        self.entries[entry.key] = entry
        self._tell(Event("MODIFIED" if old else "ADDED", entry, reader=self.reader, old=old))

    def remove(self, name: str, *, namespace: str = "ns") -> None:
        self._tell(Event("DELETED", self.entries.pop((namespace, name)), reader=self.reader))

    def _tell(self, event: Event) -> None:
        for handler in tuple(self.handlers):
            handler(event)

    @dataclass(frozen=True)
    class _Registration:
        mirror: Mirror
        handler: Callable[[Event], None]
        synced: asyncio.Event = field(default_factory=asyncio.Event)

        def remove(self) -> None:
            self.mirror.handlers.remove(self.handler)


class FakeCluster(Cluster):
    """A cluster without a server: `cluster.maps.put("x")` is an event there."""

    def __init__(self, name: str, *, generation: int = 0) -> None:
        # Another generation is a different cluster of the same name.
        super().__init__(name, config=ClusterConfig("https://127.0.0.1:1"), attributes={"generation": str(generation)})
        self.mirrors: dict[tuple[Resource, bool], Mirror] = {}
        self.asked: list[tuple[str, bool]] = []

    @property
    def cache(self) -> Any:
        return self

    def informer(self, resource: Resource, *, metadata_only: bool = False) -> Mirror:
        self.asked.append((resource.kind, metadata_only))
        return self.mirror(resource, metadata_only=metadata_only)

    @property
    def maps(self) -> Mirror:
        return self.mirror(CONFIG_MAPS)

    def mirror(self, resource: Resource, *, metadata_only: bool = False) -> Mirror:
        key = (resource, metadata_only)
        return self.mirrors.setdefault(key, Mirror(resource, metadata_only=metadata_only))


@pytest.fixture
def fake_cluster() -> type[FakeCluster]:
    """Clusters for tests of controllers."""
    return FakeCluster


class Given:
    """A provider of the clusters that a test puts into its fleet."""

    name = "given"

    def __init__(self):
        self.fleet = asyncio.get_running_loop().create_future()

    async def run(self, fleet):
        self.fleet.set_result(fleet)
        await asyncio.Event().wait()


class Work:
    """A reconciler that records requests, and returns the answers of the test."""

    def __init__(self):
        self.asked = []
        self.begun = collections.Counter()
        self.ended = []
        self.answers = {}
        self.gates = {}

    async def reconcile(self, request):
        self.asked.append(request)
        gate = self.gates.get(request.name)
        if gate is not None:
            try:
                await gate.wait()
            finally:
                self.ended.append(request)
        answer = self.answers.get(request.name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def names(self, cluster):
        return [request.name for request in self.asked if request.cluster == cluster]


@contextlib.asynccontextmanager
async def _fleet(manager):
    """Run the manager, and yield the fleet of its provider."""
    async with manager:
        yield await manager.provider.fleet


@pytest.fixture
def given() -> type[Given]:
    """A provider for tests."""
    return Given


@pytest.fixture
async def manager() -> Manager:
    """A manager with a provider for tests, and two workers for each controller."""
    return Manager(None, Given(), workers=2, name="test")


@pytest.fixture
def new_work() -> type[Work]:
    """Reconcilers for tests."""
    return Work


@pytest.fixture
def work() -> Work:
    """A reconciler for tests."""
    return Work()


@pytest.fixture
def fleet() -> Any:
    """Run a manager in `async with fleet(manager) as given`. The test adds and removes clusters by `given`."""
    return _fleet
