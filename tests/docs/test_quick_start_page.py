"""The block of the quick start about an object in every cluster does as the page says, on clusters in memory."""

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


async def test_the_object_is_in_each_cluster_and_comes_back():
    fleet, clusters = ClustersProvider(), (FakeCluster("one"), FakeCluster("two"))
    manager = Manager(None, fleet, name="test")
    exec(KEEP, {"manager": manager, "controller": controller, "Request": Request, "Cluster": Cluster})

    async def levels():
        found = [await or_none(each.client.get("v1/ConfigMap", KEY)) for each in clusters]
        return [each and each.get("data") for each in found]

    async with manager:
        for each in clusters:
            await fleet.add(each)
        await eventually(levels, lambda found: found == [{"level": "3"}] * 2)
        await clusters[0].client.patch("v1/ConfigMap", KEY, {"data": {"level": "9"}})
        await clusters[1].client.delete("v1/ConfigMap", KEY)
        await eventually(levels, lambda found: found == [{"level": "3"}] * 2)
