"""Field managers and User-Agents: owners of fields, and conflicts between two programs."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect

import pytest

from kplane.provider import Client, ClusterConfig, Conflict, Manager, ProviderError, Request, Result, controller
from kplane.provider.client.agent import user_agent
from kplane.provider.client.resources import CONFIG_MAPS, PODS
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.controllers.sources import Channel
from kplane.provider.errors import FieldConflict, api_error
from kplane.provider.objects import (
    add_finalizer,
    apply_owned,
    create_or_update,
    or_none,
    remove_finalizer,
    update_status,
)
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster, SteeredLoop

BODY = {"metadata": {"name": "m", "namespace": "default"}}

MAP = {"apiVersion": "v1", "kind": "ConfigMap", **BODY, "data": {"z": "0"}}


def body(**data):
    return BODY | {"data": data}


async def managers(cluster, resource=CONFIG_MAPS, name="m"):
    found = await cluster.client.request("GET", resource.path(name, namespace="default"))
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


def test_signature_of_manager_requires_a_name():
    """Type checkers read the annotations of the constructor, which decides whether an editor names the mistake."""
    tree = ast.parse(inspect.getsource(Manager))
    [init] = [node for node in tree.body[0].body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    defaults = dict(zip([argument.arg for argument in init.args.kwonlyargs], init.args.kw_defaults, strict=True))
    assert defaults["name"] is None


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


@pytest.mark.parametrize("write", ["create", "replace", "patch", "json_patch", "apply"])
async def test_each_write_accepts_a_field_manager(write):
    cluster = FakeCluster("a")
    async with cluster.client as client:
        if write not in {"create", "apply"}:
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
        calls["apply"] = lambda: client.apply(CONFIG_MAPS, body(a="2"), field_manager="other")
        await calls[write]()
        assert ("other", "Apply" if write == "apply" else "Update") in await managers(cluster)


@pytest.mark.parametrize(
    ("helper", "operation"),
    [
        ("create_or_update creates", "Update"),
        ("create_or_update updates", "Update"),
        ("update_status", "Update"),
        ("add_finalizer", "Update"),
        ("apply_owned", "Apply"),
    ],
)
async def test_each_helper_accepts_a_field_manager(helper, operation):
    cluster, other = FakeCluster("a"), {"field_manager": "other"}
    cluster.wire(Wiring(field_manager="shop"))
    resource, name = (PODS, "p") if helper == "update_status" else (CONFIG_MAPS, "m")
    async with cluster.client as client:
        if helper == "create_or_update creates":
            await create_or_update(client, MAP, lambda found: found.update(data={"a": "1"}), **other)
        elif helper == "create_or_update updates":
            await client.create(CONFIG_MAPS, MAP)
            await create_or_update(client, MAP, lambda found: found.update(data={"a": "1"}), **other)
        elif helper == "update_status":
            pod = {"metadata": {"name": "p", "namespace": "default"}, "spec": {"containers": [{"name": "c"}]}}
            found = await client.create("v1/Pod", pod)
            await update_status(client, found, lambda status: status.update(phase="Running"), **other)
        elif helper == "add_finalizer":
            await add_finalizer(client, await client.create(CONFIG_MAPS, MAP), "example.com/f", **other)
        else:
            owner = await client.create(CONFIG_MAPS, {"metadata": {"name": "owner", "namespace": "default"}})
            await apply_owned(cluster, owner, [MAP | {"data": {"a": "1"}}], **other)
        assert ("other", operation) in await managers(cluster, resource, name)
    await cluster.aclose()


async def test_remove_finalizer_accepts_a_field_manager(monkeypatch):
    """The removal leaves no field that the manager owns, so only the call shows the manager."""
    async with FakeCluster("a").client as client:
        finalizers = {"metadata": MAP["metadata"] | {"finalizers": ["example.com/f"]}}
        found = await client.create(CONFIG_MAPS, MAP | finalizers)
        patch, calls = client.patch, []

        async def recorded(*args, **options):
            calls.append(options["field_manager"])
            return await patch(*args, **options)

        monkeypatch.setattr(client, "patch", recorded)
        await remove_finalizer(client, found, "example.com/f", field_manager="other")
        assert calls == ["other"]


def test_two_programs_apply_keys_of_one_object_without_conflict():
    """Under one common name, each program would take the key of the other away, and write for ever."""

    async def scenario():
        cluster, keys = FakeCluster("a"), {"one": "a", "two": "b"}
        writes = []

        async def program(stack, name):
            provider = ClustersProvider()
            manager = Manager(None, provider, name=name)

            async def reconcile(request, cluster):
                found = await or_none(cluster.cache.get(CONFIG_MAPS, "m", namespace="default"))
                if (found or {}).get("data", {}).get(keys[name]) != "1":
                    writes.append(name)
                    await cluster.client.apply(CONFIG_MAPS, body(**{keys[name]: "1"}))
                return Result(requeue_after_seconds=0.1)

            start = Channel()
            controller(manager).named(name).for_(CONFIG_MAPS).watches_raw(start).build(reconcile)
            await stack.enter_async_context(manager)
            # A description of the same cluster, with a client and cache of its own.
            await provider.add(cluster.with_config(cluster.config))
            start.put(Request("a", "default", "m"))

        async with contextlib.AsyncExitStack() as stack:
            for name in keys:
                await program(stack, name)
            await asyncio.sleep(10)
            found = await cluster.client.get(CONFIG_MAPS, "m", namespace="default")
            return sorted(writes), found["data"], await managers(cluster)

    with asyncio.Runner(loop_factory=SteeredLoop) as runner:
        writes, data, owners = runner.run(scenario())
    assert writes == ["one", "two"]
    assert data == {"a": "1", "b": "1"}
    assert owners == {("one", "Apply"), ("two", "Apply")}


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
