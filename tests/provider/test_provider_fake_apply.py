"""Server-side apply in a cluster in memory: ownership of fields."""

from __future__ import annotations

import pytest

from kplane.provider import ApiError, Conflict, Invalid, NotFound, Resource
from kplane.provider.testing import FakeCluster

MAPS = "v1/ConfigMap"
DEPLOYMENTS = "apps/v1/Deployment"
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
SERVER = "/api/v1/namespaces/default/configmaps/m"


def body(**fields):
    return {"metadata": {"name": "m", "namespace": "default", **fields.pop("metadata", {})}, **fields}


@pytest.fixture
async def fake():
    cluster = FakeCluster("a", kinds=[WIDGETS])
    yield cluster
    await cluster.aclose()


@pytest.fixture
def client(fake):
    return fake.client


@pytest.fixture
def owners(client):
    """`await owners()`: the managedFields of the ConfigMap, by manager and operation."""

    async def read():
        found = await client.request("GET", SERVER)
        return {
            (entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in found["metadata"]["managedFields"]
        }

    return read


async def test_apply_creates_object_and_removes_unapplied_fields(client, owners):
    made = await client.apply(MAPS, body(data={"a": "1", "b": "1"}), field_manager="one", force=True)
    assert made["data"] == {"a": "1", "b": "1"}
    await client.patch(MAPS, "m", {"data": {"c": "1"}}, namespace="default")
    changed = await client.apply(MAPS, body(data={"a": "2"}), field_manager="one", force=True)
    assert changed["data"] == {"a": "2", "c": "1"}
    assert await owners() == {
        ("one", "Apply"): {"f:data": {"f:a": {}}},
        ("test", "Update"): {"f:data": {"f:c": {}}},
    }


async def test_apply_of_equal_value_shares_ownership(client):
    await client.apply(MAPS, body(data={"a": "1", "b": "1"}), field_manager="one", force=True)
    await client.apply(MAPS, body(data={"a": "1"}), field_manager="two", force=False)
    left = await client.apply(MAPS, body(), field_manager="one", force=True)
    assert left["data"] == {"a": "1"}
    await client.apply(MAPS, body(), field_manager="two", force=True)
    assert "data" not in await client.get(MAPS, "m", namespace="default")


async def test_apply_conflict_names_managers_and_fields_unless_forced(client, owners):
    await client.apply(MAPS, body(data={"a": "1"}, metadata={"labels": {"app": "x"}}), field_manager="one", force=True)
    await client.patch(MAPS, "m", {"data": {"b": "1"}}, namespace="default")
    wanted = body(data={"a": "2", "b": "2"}, metadata={"labels": {"app": "y"}})
    with pytest.raises(Conflict, match="Apply failed with 3 conflicts") as refused:
        await client.apply(MAPS, wanted, field_manager="two", force=False)
    assert [(entry["reason"], entry["message"], entry["field"]) for entry in refused.value.details["causes"]] == [
        ("FieldManagerConflict", 'conflict with "one"', ".data.a"),
        ("FieldManagerConflict", 'conflict with "one"', ".metadata.labels.app"),
        ("FieldManagerConflict", 'conflict with "test" using v1', ".data.b"),
    ]
    assert str(refused.value).count("or take them with force=True") == 1
    forced = await client.apply(MAPS, wanted, field_manager="two", force=True)
    assert (forced["data"], forced["metadata"]["labels"]) == ({"a": "2", "b": "2"}, {"app": "y"})
    assert list(await owners()) == [("two", "Apply")]


async def test_update_takes_ownership_of_changed_fields(client, owners):
    await client.apply(MAPS, body(data={"a": "1", "b": "1"}), field_manager="one", force=True)
    await client.replace(MAPS, body(data={"a": "2", "b": "1"}))
    assert await owners() == {
        ("one", "Apply"): {"f:data": {"f:b": {}}},
        ("test", "Update"): {"f:data": {"f:a": {}}},
    }


async def test_apply_of_equal_object_keeps_resource_version(client):
    first = await client.apply(MAPS, body(data={"a": "1"}), field_manager="one", force=True)
    assert await client.apply(MAPS, body(data={"a": "1"}), field_manager="one", force=True) == first


async def test_apply_of_old_version_conflicts_even_if_forced(client):
    first = await client.apply(MAPS, body(data={"a": "1"}), force=True)
    await client.patch(MAPS, "m", {"data": {"b": "1"}}, namespace="default")
    with pytest.raises(Conflict, match="has been modified"):
        await client.apply(
            MAPS, body(data={"a": "2"}, metadata={"resourceVersion": first["metadata"]["resourceVersion"]}), force=True
        )


async def test_apply_to_status_changes_only_the_status(client):
    with pytest.raises(NotFound):
        await client.apply(WIDGETS, body(status={"ok": True}), subresource="status", force=True)
    await client.apply(WIDGETS, body(spec={"n": 1}, status={"ok": False}), force=True)
    found = await client.apply(WIDGETS, body(spec={"n": 2}, status={"ok": True}), subresource="status", force=True)
    assert (found["spec"], found["status"], found["metadata"]["generation"]) == ({"n": 1}, {"ok": True}, 1)


async def test_apply_merges_lists_by_kubernetes_types(client):
    def deployment(*containers, **metadata):
        return body(spec={"template": {"spec": {"containers": list(containers)}}}, metadata=metadata)

    app = {"name": "app", "image": "app:1", "args": ["a"], "ports": [{"containerPort": 80}]}
    await client.apply(DEPLOYMENTS, deployment(app, finalizers=["x/one"]), field_manager="one", force=True)
    sidecar = {"name": "sidecar", "image": "sidecar:1"}
    found = await client.apply(
        DEPLOYMENTS,
        deployment(sidecar, {"name": "app", "args": ["b"]}, finalizers=["x/two"]),
        field_manager="two",
        force=True,
    )
    assert found["metadata"]["finalizers"] == ["x/one", "x/two"]
    assert found["spec"]["template"]["spec"]["containers"] == [sidecar, app | {"args": ["b"]}]
    left = await client.apply(
        DEPLOYMENTS, deployment({"name": "app", "image": "app:1"}), field_manager="two", force=True
    )
    assert left["metadata"]["finalizers"] == ["x/one"]
    [kept] = left["spec"]["template"]["spec"]["containers"]
    assert kept == {"name": "app", "image": "app:1", "ports": [{"containerPort": 80}]}


async def test_apply_treats_lists_of_custom_kinds_as_atomic(client):
    await client.apply(WIDGETS, body(spec={"items": [{"name": "a"}]}), field_manager="one", force=True)
    with pytest.raises(Conflict, match=r"\.spec\.items"):
        await client.apply(WIDGETS, body(spec={"items": [{"name": "b"}]}), field_manager="two", force=False)


async def test_apply_merges_oldest_of_many_update_managers(client, owners):
    await client.create(MAPS, body(data={"first": "1"}))
    for number in range(12):
        params = {"fieldManager": f"writer-{number:02}"}
        change = {"data": {str(number): "1"}}
        await client.request("PATCH", SERVER, body=change, params=params, content_type="application/merge-patch+json")
    found = await owners()
    assert len(found) == 10
    assert {"f:first", "f:0", "f:1", "f:2"} <= found["ancient-changes", "Update"]["f:data"].keys()


@pytest.mark.parametrize(
    ("change", "params", "status"),
    [
        ({"kind": "Secret"}, {"fieldManager": "one"}, 400),
        ({"metadata": {"name": "other"}}, {"fieldManager": "one"}, 400),
        ({"metadata": {"name": "m", "managedFields": []}}, {"fieldManager": "one"}, 400),
        ({}, {}, 422),
    ],
)
async def test_invalid_apply_is_refused(client, change, params, status):
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}} | change
    with pytest.raises(ApiError) as refused:
        await client.request("PATCH", SERVER, body=config, params=params, content_type="application/apply-patch+yaml")
    assert refused.value.status == status
    assert not await client.exists(MAPS, "m", namespace="default")


async def test_force_is_refused_for_other_patches(client):
    await client.create(MAPS, body())
    with pytest.raises(Invalid, match="force"):
        await client.request(
            "PATCH", SERVER, body={}, params={"force": True}, content_type="application/merge-patch+json"
        )


async def test_unknown_patch_type_error_lists_known_types(client):
    await client.create(MAPS, body())
    with pytest.raises(ApiError, match=r"send application/apply-patch\+yaml") as refused:
        await client.request("PATCH", SERVER, body={}, content_type="application/strategic-merge-patch+json")
    assert refused.value.status == 415
