"""Informers and caches against a real kube-apiserver."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from kplane.provider import Cache, Client, ClusterConfig, Informer, NotFound
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CONFIG_MAPS, NAMESPACES, SERVICE_ACCOUNTS

pytestmark = pytest.mark.integration


class Counting(Client):
    """A client that records its watches and counts its lists."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.watches, self.lists = [], 0

    def watch(self, *args, **options):
        self.watches.append("initial" if options["initial_events"] else options["resource_version"])
        return super().watch(*args, **options)

    async def collect(self, *args, **options):
        self.lists += 1
        return await super().collect(*args, **options)


@pytest.fixture
async def counting(client):
    async with Counting(client.config) as counting:
        yield counting


@pytest.fixture
async def cache(counting):
    cache = Cache(counting)
    yield cache
    await cache.aclose()


async def test_informer_mirrors_kind_with_one_request(client, counting, cache, namespace, eventually):
    await client.create(CONFIG_MAPS, {"metadata": {"name": "old"}, "data": {"a": "1"}}, namespace=namespace)
    found = await cache.get(CONFIG_MAPS, "old", namespace=namespace)
    assert found["kind"] == "ConfigMap"
    assert found["data"] == {"a": "1"}
    assert "managedFields" not in found["metadata"]
    events = []
    registration = cache.informer(CONFIG_MAPS).add_handler(
        lambda event: event.namespace == namespace and events.append((event.kind, event.name, event.initial))
    )
    await asyncio.wait_for(registration.synced.wait(), 60)
    await client.create(CONFIG_MAPS, {"metadata": {"name": "new"}}, namespace=namespace)
    await client.patch(CONFIG_MAPS, "new", {"data": {"x": "1"}}, namespace=namespace)
    await client.delete(CONFIG_MAPS, "new", namespace=namespace)
    await eventually(lambda: ("DELETED", "new", False) in events)
    assert [event for event in events if event[1] != "kube-root-ca.crt"] == [
        ("ADDED", "old", True),
        ("ADDED", "new", False),
        ("MODIFIED", "new", False),
        ("DELETED", "new", False),
    ]
    with pytest.raises(NotFound):
        await cache.get(CONFIG_MAPS, "new", namespace=namespace)
    assert counting.watches == ["initial"]
    assert counting.lists == 0
    assert cache.size_bytes()["ConfigMap"] > 100


async def test_metadata_informer_is_shared_and_has_only_metadata(client, counting, cache, namespace, eventually):
    """Criterion 18: a shared informer of metadata-only watches delivers metadata with apiVersion and kind."""
    body = {"metadata": {"name": "old", "labels": {"a": "b"}}, "data": {"a": "1"}}
    await client.create(CONFIG_MAPS, body, namespace=namespace)
    informer = cache.informer(CONFIG_MAPS, metadata_only=True)
    assert cache.informer(CONFIG_MAPS, metadata_only=True) is informer
    events = []
    informer.add_handler(lambda event: event.namespace == namespace and events.append(event))
    found = await cache.get(CONFIG_MAPS, "old", namespace=namespace, metadata_only=True)
    assert set(found) == {"apiVersion", "kind", "metadata"}
    assert (found["apiVersion"], found["kind"], found["metadata"]["labels"]) == ("v1", "ConfigMap", {"a": "b"})
    assert "managedFields" not in found["metadata"]
    await client.patch(CONFIG_MAPS, "old", {"metadata": {"labels": {"a": "c"}}}, namespace=namespace)
    changed = await eventually(lambda: next(event for event in events if event.kind == "MODIFIED"))
    assert changed.object == {**found, "metadata": changed.object["metadata"]}
    assert (changed.labels, changed.old["metadata"]["labels"]) == ({"a": "c"}, {"a": "b"})
    assert counting.watches == ["initial"]


async def test_informer_lists_pages_when_server_cannot_stream(client, cache, namespace, eventually):
    for number in range(5):
        await client.create(CONFIG_MAPS, {"metadata": {"name": f"c{number}"}}, namespace=namespace)
    cache._server.refuses_streams = True
    for metadata_only in (False, True):
        names = cache.informer(CONFIG_MAPS, metadata_only=metadata_only)
        found = await cache.list(CONFIG_MAPS, namespace=namespace, metadata_only=metadata_only)
        assert {obj["metadata"]["name"] for obj in found} >= {f"c{number}" for number in range(5)}
        assert {obj["kind"] for obj in found} == {"ConfigMap"}
        assert {name for _, name in names.keys(namespace=namespace)} >= {obj["metadata"]["name"] for obj in found}


async def test_field_index_finds_objects(client, cache, namespace):
    """Criterion 34: an index that is added early or late finds matching objects, in a namespace or in all."""
    other = f"{namespace}-other"
    await client.create(NAMESPACES, {"metadata": {"name": other}})
    for where in (namespace, other):
        for name, colour in (("a", "red"), ("b", "blue"), ("c", "red")):
            body = {"metadata": {"name": name}, "data": {"colour": f"{namespace} {colour}"}}
            await client.create(CONFIG_MAPS, body, namespace=where)

    def colours(found):
        return [found["data"]["colour"]] if "colour" in found.get("data", {}) else []

    async def names(field, colour, **where):
        found = await cache.list(CONFIG_MAPS, field={field: f"{namespace} {colour}"}, **where)
        return sorted((obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in found)

    cache.index_field(CONFIG_MAPS, "early", colours)
    assert await names("early", "red", namespace=namespace) == [(namespace, "a"), (namespace, "c")]
    cache.index_field(CONFIG_MAPS, "late", colours)
    for field in ("early", "late"):
        assert await names(field, "red", namespace=other) == [(other, "a"), (other, "c")]
        assert await names(field, "blue") == [(namespace, "b"), (other, "b")]
        assert await names(field, "green") == []


async def test_next_watch_uses_rotated_token_at_last_version(client, namespace, eventually, allowed):
    """Criterion 74: a renewed token causes no new list. The watch continues at its resourceVersion."""
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "reader"}}, namespace=namespace)
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    await client.create(
        CLUSTER_ROLE_BINDINGS, {"metadata": {"name": namespace}, "roleRef": role, "subjects": [subject]}
    )
    reads = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}
    await allowed(f"system:serviceaccount:{namespace}:reader", reads)

    async def issue():
        path = SERVICE_ACCOUNTS.path("reader", namespace=namespace, subresource="token")
        found = await client.request("POST", path, body={"apiVersion": "authentication.k8s.io/v1", "spec": {}})
        config = ClusterConfig(client.config.server, ca_data=client.config.ca_data)
        return dataclasses.replace(config, token=found["status"]["token"])

    seen = []
    async with Counting(await issue()) as counting:
        informer = Informer(counting, CONFIG_MAPS, watch_seconds=1)
        informer.start()
        informer.add_handler(lambda event: event.namespace == namespace and seen.append((event.kind, event.name)))
        try:
            await asyncio.wait_for(informer.wait_synced(), 60)
            await counting.update(await issue())
            await client.create(CONFIG_MAPS, {"metadata": {"name": "during"}}, namespace=namespace)
            await eventually(lambda: ("ADDED", "during") in seen)
            await eventually(lambda: len(counting.watches) > 1)
            await client.create(CONFIG_MAPS, {"metadata": {"name": "after"}}, namespace=namespace)
            await eventually(lambda: ("ADDED", "after") in seen)
            assert "refused" not in informer.restarts
        finally:
            await informer.aclose()
    assert counting.watches[1].isdigit()
    assert "initial" not in counting.watches[1:]
    assert counting.lists == 0
    assert [name for _, name in seen if name != "kube-root-ca.crt"] == ["during", "after"]
