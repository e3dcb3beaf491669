"""kopf and a real API server: handlers see the objects of engaged clusters only."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import kopf
import pytest

from kplane.provider import Cluster, current_cluster
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.contrib.kopf.bridge import KopfAware
from kplane.provider.fleet.clusters import Clusters

pytestmark = pytest.mark.integration


class Seen(set):
    """The objects that a handler saw."""

    __hash__ = object.__hash__


@pytest.fixture
def settings(namespace):
    made = kopf.OperatorSettings()
    made.posting.enabled = False
    made.networking.error_backoffs = (0.1,)
    made.watching.label_selectors["v1", "configmaps"] = f"bridged={namespace}"
    return made


@pytest.fixture
def config_map(client, namespace):
    async def create(name):
        body = {"metadata": {"name": name, "labels": {"bridged": namespace}}}
        await client.create(CONFIG_MAPS, body, namespace=namespace)

    return create


async def test_handlers_see_objects_of_engaged_clusters_only(client, namespace, config_map, settings, eventually):
    registry, seen = kopf.OperatorRegistry(), []

    @kopf.on.login(registry=registry)
    def log_in_elsewhere(**_):
        return kopf.ConnectionInfo(server="https://elsewhere.test")

    @kopf.on.event("v1", "configmaps", registry=registry)
    async def handle(memo, name, **_):
        seen.append((memo.cluster, memo.answer, current_cluster(), name))

    @kopf.on.create("v1", "configmaps", registry=registry)
    def created(name, patch, **_):
        patch.metadata.annotations["bridged"] = "yes"

    clusters = Clusters(awares=[KopfAware(registry, settings=settings, memo={"answer": 42})])
    await config_map("first")
    try:
        # Two clusters of the same API server suffice, because each kopf operator sees a single cluster.
        for name in ("one", "two"):
            await clusters.add_or_replace(Cluster(name, config=client.config))
        for name in ("one", "two"):
            await eventually(lambda name=name: (name, 42, name, "first") in seen)
        await clusters.remove("one")
        assert [thread.name for thread in threading.enumerate() if thread.name.startswith("kopf ")] == ["kopf two"]
        seen.clear()
        await config_map("second")
        await eventually(lambda: ("two", 42, "two", "second") in seen)
        assert not [found for found in seen if found[0] == "one"], "nothing of it goes on"

        async def annotated():
            found = await client.get(CONFIG_MAPS, "second", namespace=namespace)
            return found["metadata"]["annotations"]["bridged"] == "yes"

        await eventually(annotated)
    finally:
        await clusters.aclose()


async def test_stopped_operator_leaves_no_tasks_threads_or_objects(client, config_map, settings, eventually):
    registry, alive = kopf.OperatorRegistry(), weakref.WeakSet()

    @kopf.on.event("v1", "configmaps", registry=registry)
    async def handle(memo, **_):
        memo.seen = Seen()
        alive.add(memo.seen)

    await config_map("first")
    clusters = Clusters(awares=[KopfAware(registry, settings=settings)])
    tasks, threads = asyncio.all_tasks(), threading.active_count()
    for number in range(3):
        await clusters.add_or_replace(Cluster("a", config=client.config, attributes={"round": str(number)}))
        await eventually(lambda: len(alive))
        await clusters.remove("a")
        assert asyncio.all_tasks() == tasks
        assert threading.active_count() <= threads + 1, "but one, that looks names up"

        def freed():
            gc.collect()
            return not alive

        await eventually(freed)
    await clusters.aclose()
