"""Caches that hold a part of a kind: some namespaces, a single name, or the objects of a selector."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import parse_qs

import pytest

from kplane.provider import Cache, CacheScope, Client, Cluster, ClusterConfig, Manager, NotFound, ProviderError
from kplane.provider.aio.backoff import Backoff
from kplane.provider.cache.informer import Informer
from kplane.provider.client.resources import CONFIG_MAPS, NODES, SECRETS
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.errors import Forbidden

END = {"metadata": {"resourceVersion": "5", "annotations": {"k8s.io/initial-events-end": "true"}}}


def secret(namespace, name, *, version=1, **labels):
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels}}


class Server:
    """Serves Secrets by namespace, then the `changes` of the namespace. Some namespaces are forbidden."""

    def __init__(self, tools):
        self.tools = tools
        self.objects = {}
        self.changes = {}
        self.forbidden = set()
        self.asked = []

    async def answer(self, asked, writer):
        path, _, query = asked.target.partition("?")
        query = {key: value[0] for key, value in parse_qs(query).items()}
        namespace = path.split("/")[4] if "/namespaces/" in path else ""
        name = path.partition("/secrets/")[2]
        kind = "get" if name else "watch" if "watch" in query else "list"
        self.asked.append((kind, namespace, query.get("labelSelector"), query.get("fieldSelector")))
        if namespace in self.forbidden:
            writer.write(self.tools.http({"kind": "Status", "code": 403, "message": "not for you"}, status=403))
        elif kind == "get":
            found = [obj for obj in self.objects.get(namespace, []) if obj["metadata"]["name"] == name]
            writer.write(self.tools.http(found[0] if found else {"kind": "Status"}, status=200 if found else 404))
        else:
            key, _, value = query.get("labelSelector", "").partition("=")
            await self.stream(namespace, writer, lambda labels: not value or labels.get(key) == value)

    async def stream(self, namespace, writer, selected):
        writer.write(self.tools.stream_head())
        for obj in self.objects.get(namespace, []):
            if selected(obj["metadata"]["labels"]):
                await self.send("ADDED", obj, writer)
        await self.send("BOOKMARK", END, writer)
        changes = self.changes.setdefault(namespace, asyncio.Queue())
        while (change := await changes.get()) is not None:
            await self.send(*change, writer)
        writer.transport.abort()

    async def send(self, kind, found, writer):
        writer.write(self.tools.chunk(json.dumps({"type": kind, "object": found}).encode() + b"\n"))
        await writer.drain()


@pytest.fixture
def server(tools):
    return Server(tools)


@pytest.fixture
async def client(fault_server, server):
    serving = await fault_server(server.answer)
    async with Client(serving.config) as client:
        yield client


@pytest.fixture
async def caches():
    """`caches(client, **options)`: caches that end with the test."""
    made = []

    def make(client, **options):
        made.append(Cache(client, name="one", sync_timeout_seconds=60, **options))
        return made[-1]

    yield make
    for each in made:
        await each.aclose()


def names(found):
    return sorted((obj["metadata"]["namespace"], obj["metadata"]["name"]) for obj in found)


async def test_scope_watches_each_namespace_and_sends_no_other_request(client, caches, server, eventually):
    server.objects = {"x": [secret("x", "a"), secret("x", "b")], "y": [secret("y", "a")]}
    cache = caches(client, scope_of=lambda _resource: CacheScope(namespaces=("y", "x")))
    assert names(await cache.list(SECRETS)) == [("x", "a"), ("x", "b"), ("y", "a")]
    assert names(await cache.list(SECRETS, namespace="y")) == [("y", "a")]
    assert (await cache.get(SECRETS, "a", namespace="x"))["metadata"]["uid"] == "x-a"
    with pytest.raises(NotFound, match=r"Secret y/b is not in .* which keeps secrets in x, y"):
        await cache.get(SECRETS, "b", namespace="y")
    assert sorted(server.asked) == [("watch", "x", None, None), ("watch", "y", None, None)]
    # An object missing from the new list of a namespace is deleted in that namespace only.
    events = []
    informer = cache.informer(SECRETS)
    informer.add_handler(lambda event: events.append((event.kind, event.namespace, event.name, event.initial)))
    await eventually(lambda: len(events) == 3)
    server.objects["x"] = [secret("x", "c", version=6)]
    server.changes["x"].put_nowait(("ERROR", {"kind": "Status", "code": 410}))
    await eventually(lambda: len(events) == 6)
    assert sorted(events[3:]) == [
        ("ADDED", "x", "c", False),
        ("DELETED", "x", "a", False),
        ("DELETED", "x", "b", False),
    ]
    assert cache.restarts == {"expired": 1}
    assert cache.state == "ready"


async def test_read_outside_scope_is_refused(client, caches):
    cache = caches(client, scope_of=lambda _resource: CacheScope(namespaces=("x",), name="mine"))
    for read in (
        cache.get(SECRETS, "mine", namespace="y"),
        cache.get(SECRETS, "other", namespace="x"),
        cache.list(SECRETS, namespace="y"),
    ):
        with pytest.raises(
            ProviderError, match=r"outside of the cache, which keeps secrets mine in x: widen"
        ) as refused:
            await read
        assert not isinstance(refused.value, NotFound)
    informer = cache.informer(SECRETS)
    for call in (
        lambda: informer.get("mine"),
        lambda: informer.list(namespace="y"),
        lambda: informer.add_handler(print, namespace="y"),
    ):
        with pytest.raises(ProviderError, match="outside of the cache"):
            call()


async def test_forbidden_namespace_is_named_before_timeout(client, caches, server):
    server.objects, server.forbidden = {"x": [secret("x", "a")]}, {"y"}
    cache = caches(client, scope_of=lambda _resource: CacheScope(namespaces=("x", "y")))
    async with asyncio.timeout(30):
        with pytest.raises(Forbidden, match=r"'one' does not let secrets in y be read: .*not for you; grant that"):
            await cache.list(SECRETS)


async def test_get_by_name_requires_matching_labels(fault_server, server, client, eventually):
    server.objects = {"x": [secret("x", "mine", version=9, app="other")]}
    events = []
    informer = Informer(client, SECRETS, namespace="x", name="mine", label_selector="app=web", watch_seconds=60)
    informer.add_handler(lambda event: events.append((event.kind, event.resource_version)))
    server.changes["x"] = changes = asyncio.Queue()
    # The server sends the objects that matched when the watch began, then the changes.
    changes.put_nowait(("ADDED", secret("x", "mine", version=3, app="web")))
    changes.put_nowait(("DELETED", secret("x", "mine", version=9, app="other")))
    informer.start()
    try:
        await asyncio.wait_for(informer.wait_synced(), 60)
        assert informer.keys() == []
        changes.put_nowait(("ADDED", secret("x", "mine", version=12, app="web")))
        await eventually(lambda: informer.keys() == [("x", "mine")])
        assert ("ADDED", "9") not in events
        assert events[-1] == ("ADDED", "12")
    finally:
        await informer.aclose()
    assert server.asked[:2] == [
        ("watch", "x", "app=web", "metadata.name=mine"),
        ("get", "x", None, None),
    ]


@pytest.mark.parametrize(
    ("scope", "asked"),
    [
        (CacheScope(name="a"), ("watch", "", None, "metadata.name=a")),
        (
            CacheScope(namespaces=("x",), name="a", field_selector="type=Opaque"),
            ("watch", "x", None, "metadata.name=a,type=Opaque"),
        ),
        (CacheScope(label_selector="app", field_selector="type=Opaque"), ("watch", "", "app", "type=Opaque")),
    ],
)
async def test_selector_of_server_only_fields_reads_as_collection(client, caches, server, scope, asked):
    server.objects = {"": [secret("x", "a", app="web")], "x": [secret("x", "a", app="web")]}
    cache = caches(client, scope_of=lambda _resource: scope)
    assert names(await cache.list(SECRETS)) == [("x", "a")]
    assert server.asked == [asked]


async def test_informers_with_equal_scope_are_shared(client, caches, server):
    server.objects = {"x": [secret("x", "mine")], "": [secret("x", "mine"), secret("y", "a")]}
    cache = caches(client)
    scope = CacheScope(namespaces=("x",), name="mine")
    informer = cache.informer(SECRETS, scope=scope)
    assert cache.informer("v1/Secret", scope=CacheScope(namespaces=("x",), name="mine")) is informer
    assert cache.informer(SECRETS) is not informer
    cache.index_field(SECRETS, "owner", lambda _found: ["me"])
    await asyncio.wait_for(informer.wait_synced(), 60)
    assert informer.keys(field={"owner": "me"}) == [("x", "mine")]
    assert len(await cache.list(SECRETS, field={"owner": "me"})) == 2
    assert len(await cache.list(SECRETS, namespace="y")) == 1


async def test_scope_is_chosen_by_kind_and_cluster():
    both, rest = CacheScope(namespaces=("b", "a", "a")), CacheScope(namespaces=("z",), label_selector="app")
    assert both == CacheScope(namespaces=("a", "b"))
    config = ClusterConfig("https://127.0.0.1:1")
    manager = Manager(config, cache_scopes={"v1/Secret": both, "*": rest}, name="test")
    cluster = manager.local
    assert cluster.cache_scope(SECRETS) == both
    assert cluster.cache_scope(CONFIG_MAPS) == rest
    assert cluster.cache_scope(NODES) == CacheScope(label_selector="app")

    def choose(cluster, resource):
        return both if (cluster.name, resource) == ("edge", SECRETS) else None

    edge, other = Cluster("edge", config=config), Cluster("other", config=config)
    for member in (edge, other):
        member.wire(Wiring(cache_scopes=choose))
    assert edge.cache.informer(SECRETS).scope == both
    assert other.cache.informer(SECRETS).scope == edge.cache.informer(CONFIG_MAPS).scope == CacheScope()
    for member in (edge, other):
        await member.aclose()


async def test_invalid_scope_is_refused_at_construction(client, caches):
    with pytest.raises(ProviderError, match=r"write namespaces=\('x',\)"):
        CacheScope(namespaces="x")
    for empty in ({"namespaces": ("",)}, {"name": ""}):
        with pytest.raises(ProviderError, match="an empty name selects nothing"):
            CacheScope(**empty)
    with pytest.raises(ProviderError, match="cannot be read"):
        CacheScope(label_selector="a>1")
    unnamed, plural = (
        "not the name of a kind: it is written as",
        "a plural, not a kind: write it as 'example.com/v1/Widget'",
    )
    for kind, why in {"Secret": unnamed, "secrets": unnamed, "example.com/v1/widgets": plural}.items():
        with pytest.raises(ProviderError, match=f"{kind!r} is {why}"):
            Manager(ClusterConfig("https://127.0.0.1:1"), cache_scopes={kind: CacheScope()}, name="test")
    with pytest.raises(ProviderError, match="write 'v1/Secret' for Resource"):
        Manager(ClusterConfig("https://127.0.0.1:1"), cache_scopes={SECRETS: CacheScope()}, name="test")
    cache = caches(client, scope_of=lambda _resource: CacheScope(namespaces=("x",)))
    with pytest.raises(ProviderError, match="v1/Node is cluster-scoped: its CacheScope can have no namespaces"):
        await cache.list(NODES)


async def test_feeds_of_namespaces_have_separate_backoff(client):
    backoff = Backoff(initial_seconds=1, maximum_seconds=2)
    informer = Informer(client, SECRETS, namespace=("x", "y"), backoff=backoff)
    assert len({id(feed._backoff) for feed in informer.feeds} | {id(backoff)}) == 3
