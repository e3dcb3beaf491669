"""Reads of a cache: by requests, by names of kinds, and as typed objects."""

from __future__ import annotations

import json

import msgspec
import pydantic
import pytest

from kplane.provider import Cache, Client, NotFound, ObjectKey, ProviderError, Request, Resource
from kplane.provider.client.resources import CONFIG_MAPS, NODES
from kplane.provider.errors import DecodeFailed, NotServed

WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
LIST_VERSION = {"resourceVersion": "5"}


def found(namespace, name, **more):
    place = {"namespace": namespace} if namespace else {}
    return {"metadata": {"name": name, "uid": name, "resourceVersion": "1", **place}, **more}


class Server:
    """Serves ConfigMaps, Nodes and Widgets in pages, as items without apiVersion and kind, and discovery of Widgets."""

    def __init__(self, tools):
        self.tools = tools
        self.objects = {
            "configmaps": [found("x", "a", data={"k": "1"}), found("y", "a", data={"k": "2"})],
            "nodes": [found("", "a")],
            "widgets": [found("x", "a", spec={"size": 3})],
        }
        self.asked = []

    async def answer(self, asked, writer):
        path, _, query = asked.target.partition("?")
        plural = path.rpartition("/")[2]
        self.asked.append(path)
        if path == "/apis/example.com/v1":
            served = {"name": "widgets", "kind": "Widget", "namespaced": True, "verbs": ["list", "watch"]}
            writer.write(self.tools.http({"kind": "APIResourceList", "resources": [served]}))
        elif plural not in self.objects:
            writer.write(self.tools.http({"kind": "Status", "code": 404}, status=404))
        elif "watch=true" in query:
            # No streams: objects come as items of a list.
            writer.write(self.tools.http({"kind": "Status", "code": 400}, status=400))
        else:
            writer.write(self.tools.http({"metadata": LIST_VERSION, "items": self.objects[plural]}))


@pytest.fixture
def server(tools):
    return Server(tools)


@pytest.fixture
async def cache(fault_server, server):
    serving = await fault_server(server.answer)
    async with Client(serving.config) as client:
        cache = Cache(client, name="acme", sync_timeout_seconds=60)
        yield cache
        await cache.aclose()


@pytest.mark.parametrize("key", [Request("acme", "y", "a"), ObjectKey("y", "a")], ids=["request", "key"])
async def test_get_accepts_each_form_of_object_reference(cache, key):
    assert (await cache.get(CONFIG_MAPS, key))["data"] == {"k": "2"}
    with pytest.raises(ProviderError, match="has a namespace of its own"):
        await cache.get(CONFIG_MAPS, key, namespace="x")
    with pytest.raises(ProviderError, match="Node is cluster-scoped"):
        await cache.get(NODES, key)


async def test_key_of_cluster_scoped_kind_has_no_namespace(cache):
    assert (await cache.get(NODES, Request("acme", "", "a")))["metadata"]["name"] == "a"
    assert (await cache.get(NODES, "a"))["metadata"]["name"] == "a"
    with pytest.raises(NotFound, match=r"Node b is not in Cache\('acme'\)$"):
        await cache.get(NODES, ObjectKey("", "b"))
    with pytest.raises(ProviderError, match="ConfigMap 'a' is namespaced: a namespace is needed"):
        await cache.get(CONFIG_MAPS, Request("acme", "", "a"))


async def test_kind_is_resolved_by_name_or_by_discovery(cache, server):
    assert (await cache.get("v1/ConfigMap", "a", namespace="x"))["data"] == {"k": "1"}
    assert (await cache.get("example.com/v1/Widget", "a", namespace="x"))["spec"] == {"size": 3}
    assert len(await cache.list("example.com/v1/Widget")) == 1
    assert server.asked.count("/apis/example.com/v1") == 1
    with pytest.raises(NotServed):
        await cache.list("example.com/v1/Gadget")
    with pytest.raises(ProviderError, match="none of Kubernetes' own kinds"):
        cache.informer("example.com/v1/Widget")
    assert cache.informer(WIDGETS).keys() == [("x", "a")]


async def test_index_by_kind_name_is_accepted_before_discovery(cache):
    cache.index_field("example.com/v1/Widget", "size", lambda found: [str(found["spec"]["size"])])
    assert len(await cache.list("example.com/v1/Widget", field={"size": "3"})) == 1
    assert await cache.list(WIDGETS, field={"size": "4"}) == []


class Metadata(msgspec.Struct):
    name: str
    namespace: str = ""


class ConfigMap(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    metadata: Metadata
    data: dict[str, str] = {}


class Spec(pydantic.BaseModel):
    size: int


class Widget(pydantic.BaseModel):
    kind: str
    spec: Spec


async def test_decoder_returns_objects_of_its_type(cache):
    decode = msgspec.json.Decoder(ConfigMap).decode
    one: ConfigMap = await cache.get(CONFIG_MAPS, Request("acme", "x", "a"), decoder=decode)
    assert one == ConfigMap("v1", "ConfigMap", Metadata("a", "x"), {"k": "1"})
    two: list[ConfigMap] = await cache.list(CONFIG_MAPS, namespace="y", decoder=decode)
    assert [obj.data["k"] for obj in two] == ["2"]
    widget = await cache.get(WIDGETS, "a", namespace="x", decoder=Widget.model_validate_json)
    assert widget == Widget(kind="Widget", spec=Spec(size=3))
    (partial,) = await cache.list(CONFIG_MAPS, namespace="x", metadata_only=True, decoder=decode)
    assert partial == ConfigMap("v1", "ConfigMap", Metadata("a", "x"))


async def test_decoder_gets_stored_bytes(cache, server):
    server.objects["configmaps"] = [{"apiVersion": "v1", "kind": "ConfigMap", **found("x", "a", data={"ü": "\n"})}]
    raw = await cache.get(CONFIG_MAPS, "a", namespace="x", decoder=bytes)
    assert json.loads(raw) == await cache.get(CONFIG_MAPS, "a", namespace="x")
    assert raw is cache.informer(CONFIG_MAPS).entry("a", namespace="x").raw


async def test_decode_error_names_the_object(cache, server):
    server.objects["widgets"].append(found("x", "odd", spec={"size": "large"}))
    named = r"failed to decode Widget x/odd of Cache\('acme'\): spec\.size: Input should be"
    with pytest.raises(DecodeFailed, match=named):
        await cache.list(WIDGETS, decoder=Widget.model_validate_json)
    assert (await cache.get(WIDGETS, "a", namespace="x", decoder=Widget.model_validate_json)).spec.size == 3
