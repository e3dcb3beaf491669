"""Owned objects on a real kube-apiserver, which completes them with defaults."""

from __future__ import annotations

import pytest

from kplane.provider import Client, Cluster, ClusterConfig, Invalid, NotFound
from kplane.provider.cluster.cluster import Wiring
from kplane.provider.objects import apply_owned, or_none, set_controller
from kplane.provider.testing import eventually

pytestmark = pytest.mark.integration

MAPS, DEPLOYMENTS, SERVICES, ROLES = (
    "v1/ConfigMap",
    "apps/v1/Deployment",
    "v1/Service",
    "rbac.authorization.k8s.io/v1/Role",
)
LABELS = {"app": "web"}


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def described():
    resources = {"limits": {"cpu": "1000m", "memory": "1024Mi"}}
    container = {"name": "web", "image": "web:1", "ports": [{"containerPort": 80}], "resources": resources}
    template = {"metadata": {"labels": LABELS}, "spec": {"containers": [container]}}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]
    return [
        config_map("settings", a="1"),
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"a": "b"}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": LABELS}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": LABELS, "ports": [{"port": 80}]},
        },
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "web"}, "rules": rules},
    ]


@pytest.fixture
async def cluster(api_server):
    cluster = Cluster("a", config=ClusterConfig.load(api_server.admin_kubeconfig))
    cluster.wire(Wiring(field_manager="test"))
    yield cluster
    await cluster.aclose()


@pytest.fixture
async def owner(cluster, namespace):
    return await cluster.client.create(MAPS, config_map("owner"), namespace=namespace)


async def test_apply_owned_writes_nothing_twice_and_reverts_changes(cluster, owner, namespace, api_server):
    first = await apply_owned(cluster, owner, described())
    assert first.written >= 5
    again = await apply_owned(cluster, owner, described())
    assert (again.written, again.objects) == (0, first.objects)
    async with Client(ClusterConfig.load(api_server.admin_kubeconfig), field_manager="kubectl-edit") as other:
        change = {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
        await other.patch(ROLES, "web", change, namespace=namespace)
        image = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "web:2"}]
        await other.json_patch(DEPLOYMENTS, "web", image, namespace=namespace)
        added = {"spec": {"selector": {"more": "labels"}}}
        await other.patch(SERVICES, "web", added, namespace=namespace)

    def is_undone(found):
        deployment, service, role = found
        image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        return (role["rules"][0]["verbs"], image, service["spec"]["selector"]) == (["get"], "web:1", LABELS)

    # The cache may lag behind the writes of the other program: each call reverts the changes in the cache.
    async def undo():
        await apply_owned(cluster, owner, described())
        return [await cluster.client.get(kind, "web", namespace=namespace) for kind in (DEPLOYMENTS, SERVICES, ROLES)]

    await eventually(undo, is_undone)
    assert (await apply_owned(cluster, owner, described())).written == 0


async def test_apply_owned_deletes_objects_no_longer_described(cluster, owner, namespace):
    await apply_owned(cluster, owner, described())
    pruned = await apply_owned(cluster, owner, [config_map("settings", a="1")], kinds=[DEPLOYMENTS, SERVICES, ROLES])
    assert (pruned.written, pruned.pruned) == (0, 3)
    assert await or_none(cluster.client.get(DEPLOYMENTS, "web", namespace=namespace)) is None
    with pytest.raises(NotFound):
        await cluster.cache.get(SERVICES, "web", namespace=namespace)


async def test_api_server_refuses_a_second_controller(cluster, owner, namespace):
    """This protects an object that another owner creates between the read and the write."""
    other = await cluster.client.create(MAPS, config_map("other"), namespace=namespace)
    owned = {**config_map("owned"), "metadata": {"name": "owned", "namespace": namespace}}
    theirs, ours = ({**owned, "metadata": dict(owned["metadata"])} for _ in range(2))
    set_controller(other, theirs)
    set_controller(owner, ours)
    await cluster.client.create(MAPS, theirs)
    with pytest.raises(Invalid):
        await cluster.client.apply(MAPS, ours, force=True)
