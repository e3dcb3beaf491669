"""What a namespace looks like as a cluster, and what may be said to it."""

from __future__ import annotations

import pytest

from kplane.provider import (
    CLUSTER_ROLES,
    CONFIG_MAPS,
    EVENTS,
    Client,
    ClusterConfig,
    Informer,
    Invalid,
    NotFound,
    ProviderError,
    Watch,
)
from kplane.provider.providers.namespace import cache as namespace_cache
from kplane.provider.providers.namespace import client as namespace_client
from kplane.provider.providers.namespace.client import NamespaceClient
from kplane.provider.providers.namespace.view import NamespaceView

VIEW = NamespaceView("zoo")


class Host:
    """A client that notes what it is asked, and answers with an object of the host."""

    def __init__(self, answer=None):
        self.asked = []
        self.answer = answer

    async def request(self, method, path, *, body=None, **_options):
        self.asked.append((method, path, body))
        return self.answer


def test_every_method_of_what_stands_behind_a_view_is_one_of_a_namespace_too():
    pairs = ((Client, NamespaceClient), (Watch, namespace_client._NamespaceWatch), (Informer, namespace_cache._Part))
    for whole, view in pairs:
        public = {name for name in vars(whole) if not name.startswith("_")}
        assert public <= set(vars(view)), whole


def test_an_object_is_in_default_within_and_in_the_namespace_outside():
    found = VIEW.inward(CONFIG_MAPS, {"metadata": {"name": "a", "namespace": "zoo"}, "data": {"namespace": "zoo"}})
    assert found == {"metadata": {"name": "a", "namespace": "default"}, "data": {"namespace": "zoo"}}
    body = {"metadata": {"name": "a", "namespace": "default"}, "involvedObject": {"namespace": "default"}}
    assert VIEW.outward(CONFIG_MAPS, body)["metadata"]["namespace"] == "zoo"
    assert VIEW.outward(CONFIG_MAPS, body)["involvedObject"]["namespace"] == "default"
    assert body["metadata"]["namespace"] == "default"


def test_an_event_names_objects_of_its_own_namespace():
    body = {"metadata": {"namespace": "default"}, "involvedObject": {"namespace": "default", "name": "a"}}
    outside = VIEW.outward(EVENTS, body)
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
def test_a_json_patch_is_translated(operation, expected):
    (moved,) = VIEW.outward_operations(CONFIG_MAPS, [operation])
    assert moved.get("value") == expected
    assert moved["path"] == operation["path"]


def test_only_default_can_be_read_and_written():
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


async def test_a_path_is_translated_with_what_is_sent_and_answered():
    host = Host({"kind": "List", "items": [{"metadata": {"namespace": "zoo"}}, "odd"]})
    client = NamespaceClient(host, view=VIEW)
    assert (await client.request("GET", "/api/v1/namespaces/default/configmaps"))["items"][0] == {
        "metadata": {"namespace": "default"}
    }
    host.answer = {"metadata": {"namespace": "zoo"}}
    body = {"metadata": {"namespace": "default"}}
    path = "/apis/apps/v1/namespaces/{}/deployments/a%3Ab/scale"
    assert await client.request("PUT", path.format("default"), body=body) == body
    assert host.asked[-1] == ("PUT", path.format("zoo"), {"metadata": {"namespace": "zoo"}})
    await client.request("PATCH", path.format("default"), body=[{"op": "remove", "path": "/spec"}])
    assert host.asked[-1][2] == [{"op": "remove", "path": "/spec"}]


@pytest.mark.parametrize(
    "path", ["/version", "/api", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/openapi/v3/x"]
)
async def test_what_a_cluster_says_of_itself_can_be_asked(path):
    host = Host("said")
    assert await NamespaceClient(host, view=VIEW).request("GET", path) == "said"
    with pytest.raises(NotFound):
        await NamespaceClient(host, view=VIEW).request("POST", path)


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
async def test_what_is_elsewhere_cannot(path):
    host = Host()
    with pytest.raises(NotFound):
        await NamespaceClient(host, view=VIEW).request("GET", path)
    with pytest.raises((NotFound, Invalid)):
        await NamespaceClient(host, view=VIEW).request("DELETE", path)
    assert host.asked == []


async def test_what_may_not_be_written_is_not_sent():
    def refuse():
        raise ProviderError("not ours")

    host = Host()
    client = NamespaceClient(host, view=VIEW, before_write=refuse)
    await client.request("GET", "/api/v1/namespaces/default/configmaps")
    with pytest.raises(ProviderError, match="not ours"):
        await client.request("POST", "/api/v1/namespaces/default/configmaps", body={})
    body = {"metadata": {"name": "a", "namespace": "default"}}
    for write in (
        client.create(CONFIG_MAPS, body),
        client.replace(CONFIG_MAPS, body),
        client.apply(CONFIG_MAPS, body),
        client.patch(CONFIG_MAPS, "a", {}, namespace="default"),
        client.json_patch(CONFIG_MAPS, "a", [], namespace="default"),
        client.delete(CONFIG_MAPS, "a", namespace="default"),
        client.delete_all(CONFIG_MAPS, namespace="default", label_selector="x=y"),
    ):
        with pytest.raises(ProviderError, match="not ours"):
            await write
    assert len(host.asked) == 1


async def test_what_comes_and_goes_in_a_part_of_an_informer_leaves_nothing_there():
    whole = Informer(Client(ClusterConfig("https://127.0.0.1:1")), CONFIG_MAPS)
    part = namespace_cache._Part(whole, VIEW)
    kept = part.add_handler(lambda event: None)
    for _ in range(100):
        part.add_handler(lambda event: None).remove()
    assert len(part._registrations) <= 2
    await part.aclose()
    assert kept.removed
    assert list(whole._mirror.handlers) == []
