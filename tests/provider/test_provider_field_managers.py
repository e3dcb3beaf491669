"""Field managers and User-Agents: owners of fields, and conflicts between two programs."""

from __future__ import annotations

import pytest

from kplane.provider import Client, ClusterConfig, Conflict, Manager, ProviderError
from kplane.provider.client.agent import user_agent
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.errors import FieldConflict, api_error
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster

BODY = {"metadata": {"name": "m", "namespace": "default"}}


def body(**data):
    return BODY | {"data": data}


async def managers(cluster):
    found = await cluster.client.request("GET", CONFIG_MAPS.path("m", namespace="default"))
    return {(entry["manager"], entry["operation"]) for entry in found["metadata"]["managedFields"]}


@pytest.fixture
async def cluster():
    async with FakeCluster("a").client as client:
        yield client


@pytest.fixture
async def server(fault_server, tools):
    async def answer(_, writer):
        writer.write(tools.http(b"ok"))

    return await fault_server(answer)


async def agent(server, **options):
    """Return the User-Agent of a request of a client."""
    async with Client(server.config, **options) as client:
        await client.probe()
    return server.asked[-1].headers["user-agent"]


@pytest.mark.parametrize("name", [None, "", "my operator", "a/b", "é", "x" * 129])
def test_manager_without_usable_name_is_refused(name):
    with pytest.raises(ProviderError, match=r"failed to make a manager: it"):
        Manager(None) if name is None else Manager(None, name=name)


def test_manager_without_name_error_names_the_remedy():
    with pytest.raises(ProviderError, match=r"name='my-operator'"):
        Manager(None)


def test_user_agent_has_name_version_and_library():
    assert user_agent("my-operator", version="1.2").startswith("my-operator/1.2 kplane-provider/")
    assert user_agent("my-operator").startswith("my-operator/unknown kplane-provider/")
    assert user_agent(None).startswith("kplane-provider/")


async def test_client_sends_its_field_manager_as_user_agent(server):
    assert await agent(server, field_manager="shop") == user_agent("shop")
    assert await agent(server, user_agent="shop/1 test") == "shop/1 test"
    assert await agent(server) == user_agent(None)


def test_manager_gives_name_and_agent_to_its_clients():
    manager = Manager(ClusterConfig("https://127.0.0.1:1"), name="shop", version="1.2")
    client = manager.local.client
    assert (client.field_manager, client.transport.user_agent) == ("shop", user_agent("shop", version="1.2"))


async def test_clusters_of_a_manager_write_under_its_name(eventually):
    cluster, provider = FakeCluster("a"), ClustersProvider()
    await provider.add(cluster)
    async with Manager(None, provider, name="shop") as manager:
        await eventually(manager.cluster_names)
        await cluster.client.apply(CONFIG_MAPS, body(a="1"))
        await cluster.client.patch(CONFIG_MAPS, "m", {"data": {"b": "1"}}, namespace="default")
        assert await managers(cluster) == {("shop", "Apply"), ("shop", "Update")}


@pytest.mark.parametrize("write", ["create", "replace", "patch", "json_patch"])
async def test_each_write_accepts_a_field_manager(write):
    cluster = FakeCluster("a")
    async with cluster.client as client:
        if write != "create":
            await client.create(CONFIG_MAPS, body(a="1"))
        calls = {
            "create": lambda: client.create(CONFIG_MAPS, body(a="1"), field_manager="other"),
            "replace": lambda: client.replace(CONFIG_MAPS, body(a="2"), field_manager="other"),
            "patch": lambda: client.patch(
                CONFIG_MAPS, "m", {"data": {"a": "2"}}, namespace="default", field_manager="other"
            ),
            "json_patch": lambda: client.json_patch(
                CONFIG_MAPS,
                "m",
                [{"op": "replace", "path": "/data/a", "value": "2"}],
                namespace="default",
                field_manager="other",
            ),
        }
        await calls[write]()
        assert ("other", "Update") in await managers(cluster)


async def test_apply_without_field_manager_is_refused_before_it_is_sent():
    async with Client(ClusterConfig("https://127.0.0.1:1")) as client:
        with pytest.raises(ProviderError, match=r"failed to apply ConfigMap: there is no field manager"):
            await client.apply(CONFIG_MAPS, body(a="1"))


async def test_apply_of_a_field_of_another_manager_raises_field_conflict(cluster):
    await cluster.apply(CONFIG_MAPS, body(a="1", b="1"), field_manager="one")
    await cluster.patch(CONFIG_MAPS, "m", {"data": {"c": "1"}}, namespace="default", field_manager='o"dd')
    with pytest.raises(FieldConflict) as caught:
        await cluster.apply(CONFIG_MAPS, body(a="2", b="2", c="2"), field_manager="two")
    error = caught.value
    assert isinstance(error, Conflict)
    assert error.owners == {"one": (".data.a", ".data.b"), 'o"dd': (".data.c",)}
    assert all(word in str(error) for word in ("one", ".data.a", ".data.b", "force=True"))
    taken = await cluster.apply(CONFIG_MAPS, body(a="2", b="2", c="2"), field_manager="two", force=True)
    assert taken["data"] == {"a": "2", "b": "2", "c": "2"}


def test_conflict_of_long_text_keeps_its_remedy():
    cause = {"reason": "FieldManagerConflict", "message": 'conflict with "one" using v1', "field": ".data.a"}
    error = api_error(409, "Conflict", "x" * 5000, {"causes": [cause, None, {"reason": 1}]})
    assert isinstance(error, FieldConflict)
    assert error.owners == {"one": (".data.a",)}
    assert str(error).endswith("or take them with force=True")
    assert not isinstance(api_error(409, "Conflict", "changed", {"causes": "none"}), FieldConflict)
