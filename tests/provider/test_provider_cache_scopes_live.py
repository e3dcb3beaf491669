"""Caches of identities with few rights, against a real kube-apiserver and its RBAC."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from kplane.provider import (
    Cache,
    CacheScope,
    Client,
    Cluster,
    Manager,
    NotFound,
    ProviderError,
    Resource,
    controller,
)
from kplane.provider.cache.namespaces import Namespaces
from kplane.provider.client.resources import (
    CONFIG_MAPS,
    NAMESPACES,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
)
from kplane.provider.errors import Forbidden, NotServed

pytestmark = pytest.mark.integration

READ_CONFIG_MAPS = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}


@pytest.fixture
async def second(client, namespace, allowed):
    """`await second(rule)`: create another namespace in which the identity of the test has this rule."""

    async def make(rule):
        name = f"test-{uuid.uuid4().hex[:10]}"
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        accounts = (await client.list(SERVICE_ACCOUNTS, namespace=namespace)).items
        (account,) = (each for each in accounts if each["metadata"]["name"].startswith("user-"))
        user = account["metadata"]["name"]
        await client.create(ROLES, {"metadata": {"name": user}, "rules": [rule]}, namespace=name)
        binding = {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
            "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": namespace}],
        }
        await client.create(ROLE_BINDINGS, binding, namespace=name)
        await allowed(f"system:serviceaccount:{namespace}:{user}", rule, namespace=name)
        return name

    return make


async def create(client, resource, namespace, name, **more):
    await client.create(resource, {"metadata": {"name": name}, **more}, namespace=namespace)


async def test_scope_of_two_namespaces_needs_only_roles_in_both(client, namespace, service_account, second, eventually):
    config = await service_account([READ_CONFIG_MAPS])
    other = await second(READ_CONFIG_MAPS)
    for each in (namespace, other):
        await create(client, CONFIG_MAPS, each, "old")
    manager = Manager(config, cache_scopes={"v1/ConfigMap": CacheScope(namespaces=(namespace, other))}, name="test")
    seen = set()

    async def reconcile(request):
        found = await manager.local.cache.get(CONFIG_MAPS, request)
        seen.add((request.namespace, found["metadata"]["name"]))

    _ = controller(manager).for_("v1/ConfigMap").build(reconcile)
    async with manager:
        await eventually(lambda: {(namespace, "old"), (other, "old")} <= seen)
        await create(client, CONFIG_MAPS, other, "new")
        await eventually(lambda: (other, "new") in seen)
        cache = manager.local.cache
        found = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in await cache.list(CONFIG_MAPS)}
        assert {(namespace, "old"), (other, "old"), (other, "new")} <= found
        assert {place for place, _ in found} == {namespace, other}
        await client.delete(CONFIG_MAPS, "new", namespace=other)
        await eventually(lambda: cache.informer(CONFIG_MAPS).entry("new", namespace=other) is None)
        with pytest.raises(ProviderError, match="outside of the cache"):
            await cache.list(CONFIG_MAPS, namespace="kube-system")
        assert manager.local.health == ("Ready", "", {})


async def test_controller_follows_namespaces_that_join_and_leave(
    client, namespace, service_account, second, eventually
):
    config = await service_account([READ_CONFIG_MAPS])
    other = await second(READ_CONFIG_MAPS)
    for each in (namespace, other):
        await create(client, CONFIG_MAPS, each, "old")
    namespaces = Namespaces(namespace)
    manager = Manager(config, cache_scopes={"v1/ConfigMap": CacheScope(namespaces=namespaces)}, name="test")
    seen, gone = set(), set()

    async def reconcile(request):
        try:
            await manager.local.cache.get(CONFIG_MAPS, request)
        except ProviderError:
            gone.add((request.namespace, request.name))
        else:
            seen.add((request.namespace, request.name))

    _ = controller(manager).for_("v1/ConfigMap").build(reconcile)
    async with manager:
        await eventually(lambda: (namespace, "old") in seen)
        namespaces.add(other)
        await eventually(lambda: (other, "old") in seen)
        await create(client, CONFIG_MAPS, other, "new")
        await eventually(lambda: (other, "new") in seen)
        namespaces.remove(other)
        await eventually(lambda: {(other, "old"), (other, "new")} <= gone)
        assert {each["metadata"]["namespace"] for each in await manager.local.cache.list(CONFIG_MAPS)} == {namespace}
        # The identity has no right in this namespace: the others stay readable.
        namespaces.add("kube-system")
        with pytest.raises(Forbidden, match="does not let configmaps in kube-system be read"):
            await manager.local.cache.list(CONFIG_MAPS, namespace="kube-system")
        assert await manager.local.cache.list(CONFIG_MAPS, namespace=namespace)


async def test_unscoped_cache_error_names_missing_permission(namespace, service_account):
    cluster = Cluster("acme", config=await service_account([READ_CONFIG_MAPS]))
    async with asyncio.timeout(25):
        with pytest.raises(Forbidden, match=r"cluster 'acme' does not let configmaps be read: .*at the cluster scope"):
            await cluster.cache.list(CONFIG_MAPS)
    assert cluster.health.state == "Ready"
    assert cluster.health.kinds["v1/ConfigMap"].reason == "Forbidden"
    await cluster.aclose()


@pytest.mark.parametrize(
    ("verbs", "field_selector"), [(["get", "watch"], None), (["list", "watch"], "type=Opaque")], ids=["get", "list"]
)
async def test_scope_of_one_name_needs_permission_for_it(
    client, namespace, service_account, eventually, verbs, field_selector
):
    rule = {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": verbs}
    for name in ("mine", "other"):
        await create(client, SECRETS, namespace, name)
    scope = CacheScope(namespaces=(namespace,), name="mine", field_selector=field_selector)
    async with Client(await service_account([rule])) as limited:
        cache = Cache(limited, scope_of=lambda _resource: scope)
        assert (await cache.get(SECRETS, "mine", namespace=namespace))["type"] == "Opaque"
        await client.patch(SECRETS, "mine", {"stringData": {"x": "1"}}, namespace=namespace)
        await eventually(lambda: "data" in cache.informer(SECRETS).get("mine", namespace=namespace))
        assert len(await cache.list(SECRETS)) == 1
        with pytest.raises(ProviderError, match=f"Secret {namespace}/other is outside of the cache"):
            await cache.get(SECRETS, "other", namespace=namespace)
        await cache.aclose()


async def test_selectors_limit_stored_objects(client, namespace, service_account, eventually):
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]}
    await create(client, SECRETS, namespace, "typed", type="example.com/typed")
    await create(client, SECRETS, namespace, "plain")
    scope = CacheScope(namespaces=(namespace,), field_selector="type=example.com/typed", label_selector="!hidden")
    async with Client(await service_account([rule])) as limited:
        cache = Cache(limited, scope_of=lambda _resource: scope)
        assert [each["metadata"]["name"] for each in await cache.list(SECRETS)] == ["typed"]
        with pytest.raises(NotFound, match=r"with fields type=example.com/typed"):
            await cache.get(SECRETS, "plain", namespace=namespace)
        await client.patch(SECRETS, "typed", {"metadata": {"labels": {"hidden": "yes"}}}, namespace=namespace)
        await eventually(lambda: cache.informer(SECRETS).keys() == [])
        await cache.aclose()


async def test_scope_by_name_follows_labels_of_object(client, namespace, eventually):
    await client.create(CONFIG_MAPS, {"metadata": {"name": "one", "labels": {"app": "db"}}}, namespace=namespace)
    cache = Cache(client)
    scope = CacheScope(namespaces=(namespace,), name="one", label_selector="app=web")
    informer = cache.informer(CONFIG_MAPS, scope=scope)
    await asyncio.wait_for(informer.wait_synced(), 60)
    assert informer.keys() == []
    for app, found in (("web", [(namespace, "one")]), ("db", [])):
        await client.patch(CONFIG_MAPS, "one", {"metadata": {"labels": {"app": app}}}, namespace=namespace)
        await eventually(lambda found=found: informer.keys() == found)
    await cache.aclose()


async def test_kind_installed_later_is_read(client, install, eventually):
    gadgets = Resource("late.example.com/v1", "Gadget", "gadgets", namespaced=True)
    cluster = Cluster("acme", config=client.config)
    async with asyncio.timeout(25):
        with pytest.raises(NotServed, match=r"cluster 'acme' serves no late.example.com/v1/Gadget"):
            await cluster.cache.list(gadgets)
    await cluster.cache.list(CONFIG_MAPS)
    assert cluster.health.state == "Ready"
    assert cluster.health.kinds.keys() == {"late.example.com/v1/Gadget"}
    await install(gadgets)
    await eventually(lambda: cluster.health == ("Ready", "", {}))
    assert await cluster.cache.list("late.example.com/v1/Gadget") == []
    await cluster.aclose()
