"""The view of a namespace as a cluster: translated and refused requests."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest

from kplane.provider import Client, ClusterConfig, Informer, Invalid, NotFound, ProviderError
from kplane.provider.cache.scope import CacheScope
from kplane.provider.client.resources import CLUSTER_ROLES, CONFIG_MAPS, EVENTS
from kplane.provider.providers.namespace import cache as namespace_cache
from kplane.provider.providers.namespace.client import NamespaceClient
from kplane.provider.providers.namespace.view import NamespaceView

VIEW = NamespaceView("zoo")


class Server:
    """An API server that records requests and returns `answer`."""

    def __init__(self, fault_server, tools):
        self._fault_server, self._tools = fault_server, tools
        self.asked, self.answer = [], {}

    async def start(self):
        async def answer(asked, writer):
            self.asked.append((asked.method, asked.target, json.loads(asked.body or b"null")))
            writer.write(self._tools.http(json.dumps(self.answer).encode()))

        return (await self._fault_server(answer)).config


@pytest.fixture
async def server(fault_server, tools):
    return Server(fault_server, tools)


@pytest.fixture
async def host(server):
    async with Client(await server.start(), field_manager="kplane") as host:
        yield host


def test_client_requests_and_paths_all_pass_the_namespace_view():
    # Not inspect.getsource: it parses the file, which fails in Python 3.11 if a garbage collection logs meanwhile.
    modules = [Path(inspect.getfile(cls)) for cls in Client.__mro__ if cls is not object]
    source = "".join("".join(module.read_text().split()) for module in modules)
    assert source.count("HttpRequest(") == source.count("self._adapted(HttpRequest(")
    assert source.count("resource.path(") == 1


def moved(resource, body):
    return json.loads(VIEW.outward_bytes(resource, json.dumps(body).encode()))


def test_object_namespace_is_default_inward_and_real_outward():
    found = VIEW.inward(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "zoo"}, "data": {"namespace": "zoo"}})
    assert found == {"metadata": {"name": "a", "namespace": "default"}, "data": {"namespace": "zoo"}}
    body = {"metadata": {"name": "a", "namespace": "default"}, "involvedObject": {"namespace": "default"}}
    assert moved(CONFIG_MAPS, body)["metadata"]["namespace"] == "zoo"
    assert moved(CONFIG_MAPS, body)["involvedObject"]["namespace"] == "default"


def test_involved_object_of_an_event_is_translated():
    body = {"metadata": {"namespace": "default"}, "involvedObject": {"namespace": "default", "name": "a"}}
    outside = moved(EVENTS, body)
    assert outside["involvedObject"] == {"namespace": "zoo", "name": "a"}
    assert VIEW.inward(EVENTS, outside) == body


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "test", "path": "/metadata/namespace", "value": "default"}, "zoo"),
        ({"op": "replace", "path": "/data/namespace", "value": "default"}, "default"),
        ({"op": "replace", "path": "/metadata/namespace", "value": "other"}, "other"),
        ({"op": "replace", "path": "/metadata", "value": {"namespace": "default"}}, {"namespace": "zoo"}),
        (
            {"op": "replace", "path": "", "value": {"metadata": {"namespace": "default"}}},
            {"metadata": {"namespace": "zoo"}},
        ),
        ({"op": "remove", "path": "/data"}, None),
    ],
)
def test_json_patch_is_translated(operation, expected):
    (found,) = moved(CONFIG_MAPS, [operation])
    assert found.get("value") == expected
    assert found["path"] == operation["path"]


def test_namespaces_other_than_default_are_refused():
    assert VIEW.to_read(CONFIG_MAPS, None) == VIEW.to_read(CONFIG_MAPS, "default") == "zoo"
    assert VIEW.to_write(CONFIG_MAPS, "default") == "zoo"
    with pytest.raises(NotFound, match="there is no namespace 'zoo' here"):
        VIEW.to_read(CONFIG_MAPS, "zoo")
    for namespace in ("zoo", "", None):
        with pytest.raises(Invalid, match="must be 'default'"):
            VIEW.to_write(CONFIG_MAPS, namespace)
    for refuse in (VIEW.to_read, VIEW.to_write):
        with pytest.raises(NotFound, match="no cluster-scoped objects"):
            refuse(CLUSTER_ROLES, "default")


async def test_raw_request_path_and_bodies_are_translated(server, host):
    server.answer = {"kind": "List", "items": [{"metadata": {"namespace": "zoo"}}, "odd"]}
    client = NamespaceClient(host, view=VIEW)
    assert (await client.request("GET", "/api/v1/namespaces/default/configmaps"))["items"][0] == {
        "metadata": {"namespace": "default"}
    }
    server.answer = {"metadata": {"namespace": "zoo"}}
    body = {"metadata": {"namespace": "default"}}
    path = "/apis/apps/v1/namespaces/{}/deployments/a%3Ab/scale"
    assert await client.request("PUT", path.format("default"), body=body) == body
    assert server.asked[-1] == ("PUT", path.format("zoo"), {"metadata": {"namespace": "zoo"}})
    assert body == {"metadata": {"namespace": "default"}}
    await client.request("PATCH", path.format("default"), body=[{"op": "remove", "path": "/spec"}])
    assert server.asked[-1][2] == [{"op": "remove", "path": "/spec"}]


@pytest.mark.parametrize(
    "path", ["/version", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v3/x"]
)
async def test_discovery_paths_can_only_be_read(server, host, path):
    server.answer = "said"
    assert await NamespaceClient(host, view=VIEW).request("GET", path) == "said"
    with pytest.raises(NotFound):
        await NamespaceClient(host, view=VIEW).request("POST", path)
    assert server.asked == [("GET", path, None)]


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/namespaces/zoo/configmaps",
        "/api/v1/namespaces/default/../zoo/configmaps",
        "/api/v1/namespaces/default/%2e%2e/zoo/secrets",
        "/api/v1/namespaces/default%2f..%2fzoo/secrets",
        "/api/v1/namespaces/default//secrets",
        "/api/v1/namespaces",
        "/api/v1/namespaces/default",
        "/api/v1/configmaps",
        "/apis/apps/v1/deployments",
        "/version/../api/v1/nodes",
        "/",
    ],
)
async def test_paths_outside_the_namespace_are_refused(server, host, path):
    with pytest.raises(NotFound):
        await NamespaceClient(host, view=VIEW).request("GET", path)
    with pytest.raises((NotFound, Invalid)):
        await NamespaceClient(host, view=VIEW).request("DELETE", path)
    assert server.asked == []


async def test_fenced_client_sends_no_refused_write(server, host):
    def refuse():
        raise ProviderError("not ours")

    client = NamespaceClient(host, view=VIEW, before_write=refuse)
    await client.request("GET", "/api/v1/namespaces/default/configmaps")
    with pytest.raises(ProviderError, match="not ours"):
        await client.request("POST", "/api/v1/namespaces/default/configmaps", body={})
    body = {"metadata": {"name": "a", "namespace": "default"}}
    for write in (
        client.create(CONFIG_MAPS, body),
        client.replace(CONFIG_MAPS, body),
        client.apply(CONFIG_MAPS, body, force=True),
        client.patch(CONFIG_MAPS, "a", {}, namespace="default"),
        client.json_patch(CONFIG_MAPS, "a", [], namespace="default"),
        client.delete(CONFIG_MAPS, "a", namespace="default"),
        client.delete_all(CONFIG_MAPS, namespace="default", label_selector="x=y"),
    ):
        with pytest.raises(ProviderError, match="not ours"):
            await write
    assert len(server.asked) == 1


async def test_closed_namespace_client_leaves_the_host_client_open(server, host):
    server.answer = {"major": "1"}
    client = NamespaceClient(host, view=VIEW)
    await client.update(host.config)
    await client.aclose()
    assert await host.request("GET", "/version") == {"major": "1"}


async def test_informer_part_keeps_no_removed_handlers():
    client = Client(ClusterConfig("https://127.0.0.1:1"), field_manager="kplane")
    whole = Informer(client, CONFIG_MAPS)
    part = namespace_cache._Part(whole, client, VIEW, scope=CacheScope())
    kept = part.add_handler(lambda event: None)
    for _ in range(100):
        part.add_handler(lambda event: None).remove()
    assert len(part._registrations) <= 2
    await part.aclose()
    assert kept.removed
    assert list(whole._handlers) == []
