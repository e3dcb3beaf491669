"""Programs of the page about objects, on a cluster in memory."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from kplane.provider import Client, Manager, Request, Resource, controller
from kplane.provider.cache.event import Event
from kplane.provider.objects import is_condition_true, or_none
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, eventually

PAGE = Path(__file__).parents[2] / "docs" / "multicluster" / "objects.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
WEBSITES = Resource("example.com/v1", "Website", "websites", namespaced=True)
KEY = Request("one", "default", "shop")


async def run(block: str, names: dict[str, Any]) -> None:
    """Execute a block, which may use await."""
    code = compile(block, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.iscoroutine(result):
        await result


@pytest.fixture
async def cluster():
    cluster = FakeCluster("one", kinds=[WEBSITES])
    yield cluster
    await cluster.aclose()


async def test_operator_of_page_restores_objects_then_sends_no_request(cluster, monkeypatch):
    names: dict[str, Any] = {}
    await run(BLOCKS[0], names)
    assert len(BLOCKS[0].splitlines()) <= 40
    fleet, client = ClustersProvider(), cluster.make_client()
    manager = Manager(None, fleet, name="test")
    controller(manager).for_(WEBSITES).owns("v1/ConfigMap").owns("apps/v1/Deployment").build(names["reconcile"])
    spec = {"image": "web:1", "pages": {"index": "hello"}}
    async with manager:
        await fleet.add(cluster)
        await client.create(WEBSITES, {"metadata": {"name": "shop", "namespace": "default"}, "spec": spec})
        await eventually(lambda: client.get("apps/v1/Deployment", KEY))
        await client.patch("v1/ConfigMap", KEY, {"data": {"index": "defaced"}})
        await eventually(lambda: client.get("v1/ConfigMap", KEY), lambda found: found["data"] == spec["pages"])
        status = {"status": {"conditions": [{"type": "Available", "status": "True"}]}}
        await client.patch("apps/v1/Deployment", KEY, status, subresource="status")
        await eventually(
            lambda: client.get(WEBSITES, KEY), lambda found: is_condition_true(found, "Ready", current=True)
        )

        async def refuse(self, method, path, **given):
            raise AssertionError(f"{method} {path}")

        with monkeypatch.context() as patched:
            await eventually(lambda: cluster.cache.get(WEBSITES, KEY), lambda found: is_condition_true(found, "Ready"))
            patched.setattr(Client, "request", refuse)
            await names["reconcile"](KEY, cluster)
        await client.delete(WEBSITES, KEY)
        await eventually(lambda: or_none(client.get(WEBSITES, KEY)), lambda found: found is None)
    await client.aclose()


async def test_blocks_of_page_run_on_a_fake_cluster(cluster):
    names: dict[str, Any] = {"cluster": cluster}
    for block in BLOCKS:
        await run(block, names)
    assert await or_none(cluster.client.get("v1/ConfigMap", "new", namespace="default")) is None
    assert (await cluster.client.get("v1/Namespace", "team-web"))["metadata"]["labels"] == {"team": "web"}
    reader = cluster.cache.informer("v1/ConfigMap")._reader
    body = {"metadata": {"name": "a", "namespace": "x", "labels": {"app": "web"}}}
    (delayed,) = names["soon"](cluster, Event("ADDED", reader.encode(body), reader=reader))
    assert (delayed.request, delayed.seconds) == (Request("one", "x", "web"), 5)
