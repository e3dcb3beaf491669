"""Block of the quick start that keeps an object in every cluster, on clusters in memory."""

from __future__ import annotations

import re
from pathlib import Path

from kplane.provider import Cluster, Manager, Request, controller
from kplane.provider.objects import or_none
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, eventually

PAGE = Path(__file__).parents[2] / "docs" / "multicluster" / "quick-start.md"
_, KEEP = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
KEY = Request("", "default", "settings").key


async def test_object_is_created_and_restored_in_each_cluster():
    fleet, clusters = ClustersProvider(), (FakeCluster("one"), FakeCluster("two"))
    manager = Manager(None, fleet, name="test")
    exec(KEEP, {"manager": manager, "controller": controller, "Request": Request, "Cluster": Cluster})

    async def levels():
        objects = [await or_none(item.client.get("v1/ConfigMap", KEY)) for item in clusters]
        return [item and item.get("data") for item in objects]

    async with manager:
        for item in clusters:
            await fleet.add(item)
        await eventually(levels, lambda found: found == [{"level": "3"}] * 2)
        await clusters[0].client.patch("v1/ConfigMap", KEY, {"data": {"level": "9"}})
        await clusters[1].client.delete("v1/ConfigMap", KEY)
        await eventually(levels, lambda found: found == [{"level": "3"}] * 2)
