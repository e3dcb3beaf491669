"""The client against a real kube-apiserver."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from kplane.provider import (
    AlreadyExists,
    ApiError,
    Client,
    ClusterConfig,
    Conflict,
    Invalid,
    NotFound,
    ProviderError,
    Unreachable,
)
from kplane.provider.client.resources import CONFIG_MAPS, NAMESPACES, SECRETS
from kplane.provider.errors import FieldConflict, Forbidden, Unauthorized

pytestmark = pytest.mark.integration


def config_map(name, **data):
    return {"metadata": {"name": name, "labels": {"app": name[0]}}, "data": data}


async def test_client_creates_reads_changes_and_deletes_an_object(client, namespace):
    created = await client.create(CONFIG_MAPS, config_map("a", x="1"), namespace=namespace)
    read = await client.get(CONFIG_MAPS, "a", namespace=namespace)
    assert read["data"] == {"x": "1"}
    assert read["metadata"]["uid"] == created["metadata"]["uid"]

    read["data"]["x"] = "2"
    await client.replace(CONFIG_MAPS, read)
    await client.patch(CONFIG_MAPS, "a", {"data": {"y": "3"}}, namespace=namespace)
    operations = [{"op": "add", "path": "/data/z", "value": "4"}]
    changed = await client.json_patch(CONFIG_MAPS, "a", operations, namespace=namespace)
    assert changed["data"] == {"x": "2", "y": "3", "z": "4"}

    await client.delete(CONFIG_MAPS, "a", namespace=namespace)
    with pytest.raises(NotFound, match=r'configmaps "a" not found'):
        await client.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_server_side_apply_owns_fields_by_manager(client, namespace):
    ours = config_map("a", x="1") | {"metadata": {"name": "a", "namespace": namespace}}
    applied = await client.apply(CONFIG_MAPS, ours, field_manager="one", force=True)
    again = await client.apply(CONFIG_MAPS, ours, field_manager="one", force=True)
    assert again["metadata"]["resourceVersion"] == applied["metadata"]["resourceVersion"]

    theirs = {"metadata": {"name": "a", "namespace": namespace}, "data": {"x": "2"}}
    with pytest.raises(FieldConflict) as caught:
        await client.apply(CONFIG_MAPS, theirs, field_manager="two")
    assert caught.value.owners == {"one": (".data.x",)}
    assert "force=True" in str(caught.value)
    forced = await client.apply(CONFIG_MAPS, theirs, field_manager="two", force=True)
    assert forced["data"] == {"x": "2"}


async def test_unknown_field_follows_field_validation(client, namespace):
    body = config_map("a", x="1") | {"data2": {}}
    for validation, expected in (("Warn", ['unknown field "data2"']), ("Ignore", [])):
        seen = []
        async with Client(client.config, field_validation=validation, on_warning=seen.append) as writer:
            await writer.create(CONFIG_MAPS, body, namespace=namespace)
            await writer.delete(CONFIG_MAPS, "a", namespace=namespace)
        assert [warning.text for warning in seen] == expected
    async with Client(client.config, field_validation="Strict") as writer:
        with pytest.raises(ApiError, match='unknown field "data2"') as caught:
            await writer.create(CONFIG_MAPS, body, namespace=namespace)
    assert caught.value.status == 400


async def test_refused_writes_raise_the_class_of_their_reason(client, namespace):
    first = await client.create(CONFIG_MAPS, config_map("a", x="1"), namespace=namespace)
    with pytest.raises(AlreadyExists):
        await client.create(CONFIG_MAPS, config_map("a"), namespace=namespace)
    await client.patch(CONFIG_MAPS, "a", {"data": {"x": "2"}}, namespace=namespace)
    with pytest.raises(Conflict) as caught:
        await client.replace(CONFIG_MAPS, first)
    assert not isinstance(caught.value, AlreadyExists)
    with pytest.raises(Conflict):
        await client.delete(CONFIG_MAPS, "a", namespace=namespace, uid="another")
    with pytest.raises(Invalid) as invalid:
        await client.create(CONFIG_MAPS, config_map("Not A Name"), namespace=namespace)
    assert invalid.value.reason == "Invalid"
    assert "metadata.name" in str(invalid.value)


async def test_empty_name_is_refused_before_calling_the_collection(client, namespace):
    await client.create(CONFIG_MAPS, config_map("a"), namespace=namespace)
    with pytest.raises(ProviderError, match="empty"):
        await client.delete(CONFIG_MAPS, "", namespace=namespace)
    assert await client.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_list_returns_all_pages(client, namespace):
    for number in range(7):
        await client.create(CONFIG_MAPS, config_map(f"{'ab'[number % 2]}-{number}"), namespace=namespace)
    found = await client.list(CONFIG_MAPS, namespace=namespace, label_selector="app in (a,b)", page_size=3)
    assert [item["metadata"]["name"] for item in found.items] == ["a-0", "a-2", "a-4", "a-6", "b-1", "b-3", "b-5"]
    assert {(item["apiVersion"], item["kind"]) for item in found.items} == {("v1", "ConfigMap")}
    assert not any("managedFields" in item["metadata"] for item in found.items)
    some = await client.list(CONFIG_MAPS, namespace=namespace, label_selector="app=b")
    assert len(some.items) == 3
    everywhere = await client.list(CONFIG_MAPS, label_selector="app=b")
    assert len(everywhere.items) >= 3


async def test_watch_continues_at_version_of_list(client, namespace):
    await client.create(CONFIG_MAPS, config_map("old"), namespace=namespace)
    listed = await client.list(CONFIG_MAPS, namespace=namespace)
    await client.create(CONFIG_MAPS, config_map("new", x="1"), namespace=namespace)
    await client.patch(CONFIG_MAPS, "new", {"data": {"x": "2"}}, namespace=namespace)
    await client.delete(CONFIG_MAPS, "new", namespace=namespace)
    seen = []
    async with client.watch(CONFIG_MAPS, namespace=namespace, resource_version=listed.resource_version) as watch:
        async for event in watch:
            if event.type != "BOOKMARK" and event.object["metadata"]["name"] == "new":
                seen.append(event.type)
            if event.type == "DELETED":
                break
    assert seen == ["ADDED", "MODIFIED", "DELETED"]


async def test_watch_is_ended_by_server_at_timeout(client, namespace):
    async with asyncio.timeout(60):
        async with client.watch(SECRETS, namespace=namespace, resource_version=None, timeout_seconds=1) as watch:
            assert {event.type async for event in watch} <= {"BOOKMARK"}


async def test_bad_token_is_unauthorized_and_no_permission_is_forbidden(client, service_account):
    nobody = ClusterConfig(client.config.server, ca_data=client.config.ca_data, token="wrong")
    async with Client(nobody, field_manager="kplane") as stranger:
        with pytest.raises(Unauthorized):
            await stranger.get(NAMESPACES, "default")
    async with Client(await service_account([]), field_manager="kplane") as powerless:
        with pytest.raises(Forbidden, match="cannot get resource"):
            await powerless.get(NAMESPACES, "default")


async def test_probe_succeeds_and_version_is_returned(client):
    await client.probe()
    assert (await client.request("GET", "/version"))["gitVersion"].startswith("v1.")


async def test_server_of_unknown_ca_raises_certificate_error(client, tools):
    stranger = dataclasses.replace(client.config, ca_data=tools.Authority().pem)
    async with Client(stranger, field_manager="kplane") as misled:
        with pytest.raises(Unreachable, match="certificate not signed by the CA of the kubeconfig") as caught:
            await misled.probe()
    assert (caught.value.kind, caught.value.reason) == ("tls", "CertificateInvalid")
