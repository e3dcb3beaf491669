"""Add-ons in a real API server: order, repair, pruning and isolation. The tenant's own objects stay untouched."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from typing import Any

import pytest

from kplane.controlplane_operator.addons.manifest import ObjectId
from kplane.provider import Invalid, NotFound, Resource, Unreachable
from kplane.provider.client.resources import (
    CLUSTER_ROLE_BINDINGS,
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    NAMESPACES,
    SECRETS,
)
from kplane.provider.errors import AnswerTooLarge

pytestmark = pytest.mark.integration

WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)

CRD = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
"""
WIDGET = "{apiVersion: example.com/v1, kind: Widget, metadata: {name: first, namespace: shop}, spec: {size: 1}}"
SHOP = "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}"


def config(name: str, *, namespace: str = "default", value: str = "1", extra: str = "") -> str:
    metadata = f"{{name: {name}, namespace: {namespace}{extra}}}"
    return f"---\n{{apiVersion: v1, kind: ConfigMap, metadata: {metadata}, data: {{value: '{value}'}}}}\n"


def binding(role: str) -> str:
    return json.dumps(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "addon-viewers"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "viewers"}],
        }
    )


async def names(addons: Any, namespace: str = "default") -> set[str]:
    config_maps = (await addons.client.list(CONFIG_MAPS, namespace=namespace)).items
    return {item["metadata"]["name"] for item in config_maps} - {"kube-root-ca.crt"}


async def gone(addons: Any, resource: Resource, name: str, eventually: Any, **where: Any) -> None:
    async def absent() -> bool:
        try:
            obj = await addons.client.get(resource, name, **where)
        except NotFound:
            return True
        return "deletionTimestamp" in obj["metadata"]

    assert await eventually(absent)


async def test_unordered_bundle_needs_one_sync_and_no_later_write(addons: Any) -> None:
    addons.bundle("shop", a=WIDGET, b=config("settings", namespace="shop"), c=CRD, d=SHOP)
    assert await addons.failures() == {}
    widget = await addons.client.get(WIDGETS, "first", namespace="shop")
    assert widget["metadata"]["labels"] == {"controlplane.kplane.dev/installed-by": "shop"}

    async def versions() -> list[str]:
        objects = [
            *(await addons.client.list(WIDGETS)).items,
            *(await addons.client.list(CONFIG_MAPS)).items,
            *(await addons.client.list(NAMESPACES)).items,
        ]
        return sorted(f"{item['metadata']['name']}={item['metadata']['resourceVersion']}" for item in objects)

    before = await versions()
    assert await addons.failures() == {}
    assert await versions() == before


async def test_drift_is_repaired_including_role_of_a_binding(addons: Any) -> None:
    addons.bundle("a", a=config("one"), b=binding("view"))
    assert await addons.failures() == {}
    await addons.client.patch(CONFIG_MAPS, "one", {"data": {"value": "other"}}, namespace="default")
    await addons.client.delete(CLUSTER_ROLE_BINDINGS, "addon-viewers")
    await addons.client.create(CLUSTER_ROLE_BINDINGS, json.loads(binding("cluster-admin")))
    assert await addons.failures() == {}
    assert (await addons.client.get(CONFIG_MAPS, "one", namespace="default"))["data"] == {"value": "1"}
    assert (await addons.client.get(CLUSTER_ROLE_BINDINGS, "addon-viewers"))["roleRef"]["name"] == "view"


async def test_objects_without_bundle_or_class_are_pruned_unless_kept(addons: Any, eventually: Any) -> None:
    keep = ", annotations: {controlplane.kplane.dev/keep: 'true'}"
    addons.bundle("a", a=config("one") + config("two") + config("kept", extra=keep))
    addons.bundle("b", a=SHOP, b=CRD, c=WIDGET)
    assert await addons.failures() == {}
    assert await names(addons) == {"one", "two", "kept"}

    addons.bundle("a", a=config("two"))
    assert await addons.failures() == {}
    assert await names(addons) == {"two", "kept"}

    addons.wanted = []
    assert await addons.failures() == {}
    assert await names(addons) == {"kept"}
    await gone(addons, CUSTOM_RESOURCE_DEFINITIONS, "widgets.example.com", eventually)
    await gone(addons, NAMESPACES, "shop", eventually)
    assert await names(addons, "kplane-system") == set()


async def test_object_moved_to_another_addon_keeps_its_uid(addons: Any) -> None:
    addons.bundle("a", a=config("one") + config("stays"))
    addons.bundle("b", a=config("two"))
    assert await addons.failures() == {}
    before = (await addons.client.get(CONFIG_MAPS, "one", namespace="default"))["metadata"]["uid"]
    addons.bundle("a", a=config("stays"))
    addons.bundle("b", a=config("one") + config("two"))
    assert await addons.failures() == {}
    addons.wanted = ["b"]
    assert await addons.failures() == {}
    after = (await addons.client.get(CONFIG_MAPS, "one", namespace="default"))["metadata"]
    assert after["uid"] == before
    assert after["labels"] == {"controlplane.kplane.dev/installed-by": "b"}
    assert await names(addons) == {"one", "two"}


async def test_broken_addon_blocks_no_other_and_keeps_its_objects(addons: Any) -> None:
    addons.bundle("broken", a=config("old") + config("good"))
    assert await addons.failures() == {}
    bad = "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {ports: [{port: 99999999}]}}"
    unknown = "{apiVersion: nowhere.example.com/v1, kind: Thing, metadata: {name: x}}"
    addons.bundle("broken", a=config("good", value="2"), b=bad, c=unknown)
    addons.bundle("fine", a=config("fine"))
    addons.wanted += ["missing"]
    failures = await addons.failures()
    assert set(failures) == {"broken", "missing"}
    assert failures["missing"].reason == "AddonUnknown"
    assert "Service default/bad" in failures["broken"].message
    assert "does not serve kind Thing of nowhere.example.com/v1" in failures["broken"].message
    assert await names(addons) == {"old", "good", "fine"}
    assert (await addons.client.get(CONFIG_MAPS, "good", namespace="default"))["data"] == {"value": "2"}


async def test_invalid_or_missing_bundle_removes_no_object(addons: Any) -> None:
    addons.bundle("a", a=config("one"))
    assert await addons.failures() == {}
    addons.bundle("a", a="][")
    assert (await addons.failures())["a"].reason == "BundleInvalid"
    addons.store.remove(next(iter(addons.store)))
    assert (await addons.failures())["a"].reason == "AddonUnknown"
    assert await names(addons) == {"one"}


async def test_existing_objects_of_tenant_are_not_taken_over(addons: Any) -> None:
    await addons.client.create(NAMESPACES, {"metadata": {"name": "shop"}})
    await addons.client.create(
        CONFIG_MAPS, json.loads('{"metadata": {"name": "mine"}, "data": {"a": "b"}}'), namespace="shop"
    )
    addons.bundle("a", a=SHOP, b=config("mine", namespace="shop"), c=config("other", namespace="shop"))
    failures = await addons.failures()
    assert "ConfigMap shop/mine exists in the control plane and is not the add-on's" in failures["a"].message
    assert (await addons.client.get(CONFIG_MAPS, "mine", namespace="shop"))["data"] == {"a": "b"}
    assert await names(addons, "shop") == {"mine", "other"}

    label = {"metadata": {"labels": {"controlplane.kplane.dev/installed-by": "a"}}}
    await addons.client.patch(CONFIG_MAPS, "mine", label, namespace="shop")
    assert await addons.failures() == {}
    addons.wanted = []
    assert await addons.failures() == {}
    # The namespace existed before the add-on.
    assert (await addons.client.get(NAMESPACES, "shop"))["status"]["phase"] == "Active"
    assert await names(addons, "shop") == set()


async def test_object_in_two_addons_is_reported_and_first_keeps_it(addons: Any) -> None:
    addons.bundle("a", a=config("one"))
    addons.bundle("b", a=config("one", value="2"))
    for _ in range(2):
        failures = await addons.failures(last=["b"])
        assert list(failures) == ["b"]
        assert "in add-on a as well" in failures["b"].message
        assert (await addons.client.get(CONFIG_MAPS, "one", namespace="default"))["data"] == {"value": "1"}


async def test_forged_inventory_deletes_no_object_of_the_tenant(addons: Any) -> None:
    addons.bundle("a", a=config("one"))
    assert await addons.failures() == {}
    await addons.client.create(CONFIG_MAPS, {"metadata": {"name": "victim", "namespace": "default"}})
    forged = [
        ["v1", "ConfigMap", "default", "victim"],
        ["rbac.authorization.k8s.io/v1", "ClusterRole", "", "cluster-admin"],
        ["v1", "Namespace", "", "../../kube-system"],
        ["v1", "Secret", "", "nothing"],
        "nonsense",
    ]
    lines = "\n".join(json.dumps(entry) for entry in forged) + "\n{["
    await addons.client.patch(CONFIG_MAPS, "kplane-addon-a", {"data": {"objects": lines}}, namespace="kplane-system")
    assert await addons.failures() == {}
    assert await names(addons) == {"one", "victim"}
    inventory = await addons.client.get(CONFIG_MAPS, "kplane-addon-a", namespace="kplane-system")
    assert json.loads(inventory["data"]["objects"]) == ["v1", "ConfigMap", "default", "one"]


async def test_deleted_inventory_is_recreated(addons: Any) -> None:
    addons.bundle("a", a=config("one"))
    assert await addons.failures() == {}
    await addons.client.delete(CONFIG_MAPS, "kplane-addon-a", namespace="kplane-system")
    assert await addons.failures() == {}
    addons.wanted = []
    assert await addons.failures() == {}
    assert await names(addons) == set()


async def test_sync_converges_after_a_crash_between_any_two_calls(addons: Any, monkeypatch: Any) -> None:
    class Killed(BaseException):
        pass

    calls = left = 0
    request = type(addons.client).request

    async def dying(self: Any, method: str, *arguments: Any, **named: Any) -> Any:
        nonlocal calls, left
        calls += 1
        if method != "GET":
            left -= 1
        if left < 0:
            raise Killed
        return await request(self, method, *arguments, **named)

    monkeypatch.setattr(type(addons.client), "request", dying)
    stages = [config("one") + config("two"), config("two", value="2") + config("three"), None]
    for stage in stages:
        addons.wanted = []
        if stage is not None:
            addons.bundle("a", a=stage)
        for survived in range(40):
            left = survived
            try:
                assert await addons.failures() == {}
                break
            except Killed:
                continue
        else:
            pytest.fail("it never came through")
        left = 1000
        expected = {"one", "two"} if stage == stages[0] else {"two", "three"} if stage is not None else set()
        assert await names(addons) == expected


async def test_hanging_webhook_delays_only_addons_it_intercepts(addons: Any, monkeypatch: Any, eventually: Any) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(65536):
            pass

    async with await asyncio.start_server(hang, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        hook = {
            "name": "hangs.example.com",
            "clientConfig": {"url": f"https://127.0.0.1:{port}/"},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["secrets"]}],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 30,
        }
        kind = Resource(
            "admissionregistration.k8s.io/v1",
            "ValidatingWebhookConfiguration",
            "validatingwebhookconfigurations",
            namespaced=False,
        )
        await addons.client.create(kind, {"metadata": {"name": "hangs"}, "webhooks": [hook]})
        secrets = "---\n".join(f"{{apiVersion: v1, kind: Secret, metadata: {{name: s{n}}}}}\n" for n in range(5))
        addons.bundle("slow", a=secrets)
        addons.bundle("quick", a=config("one"))
        monkeypatch.setattr(addons.client._calls, "_timeout_seconds", 1.0)

        async def is_asked() -> bool:
            try:
                await addons.client.create(SECRETS, {"metadata": {"generateName": "probe-", "namespace": "default"}})
            except Unreachable:
                return True
            return False

        # The API server needs a moment until it calls a new webhook.
        await eventually(is_asked)
        failures = await addons.failures()
        assert list(failures) == ["slow"]
        assert failures["slow"].message.count("no answer in time") == 2
        assert "the rest waits for a retry" in failures["slow"].message
        assert await names(addons) == {"one"}
        await addons.client.delete(kind, "hangs")
        for writer in writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


def test_object_id_shows_kind_namespace_and_name() -> None:
    assert str(ObjectId("v1", "ConfigMap", "shop", "one")) == "ConfigMap shop/one"
    assert str(ObjectId("v1", "Namespace", "", "shop")) == "Namespace shop"


async def test_over_200_inventories_raise_answer_too_large(addons: Any) -> None:
    addons.bundle("a", a=config("one"))
    assert await addons.failures() == {}
    label = {"controlplane.kplane.dev/addon-inventory": "true"}
    for number in range(200):
        metadata = {"name": f"forged-{number}", "namespace": "kplane-system", "labels": label}
        await addons.client.create(CONFIG_MAPS, {"metadata": metadata})
    with pytest.raises(AnswerTooLarge, match="more configmaps of those asked for than 200"):
        await addons.failures()


async def test_inventory_with_impossible_addon_name_is_ignored(addons: Any) -> None:
    addons.bundle("a", a=config("one"))
    assert await addons.failures() == {}
    forged = "b\x1b[31m" + "c" * 300
    name = f"kplane-addon-{hashlib.sha256(forged.encode()).hexdigest()}"
    metadata = {"namespace": "kplane-system", "labels": {"controlplane.kplane.dev/addon-inventory": "true"}}
    lines = '["v1", "ConfigMap", "default", "one"]'
    for bad, addon in ((name, forged), ("kplane-addon-other", "another"), ("kplane-addon-", "")):
        body = {"metadata": {**metadata, "name": bad}, "data": {"addon": addon, "objects": lines}}
        with contextlib.suppress(Invalid):
            await addons.client.create(CONFIG_MAPS, body)
    assert await addons.failures() == {}
    assert await names(addons) == {"one"}
