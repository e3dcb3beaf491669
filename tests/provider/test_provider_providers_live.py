"""Each way of finding clusters, with a manager and a controller, on a real API server."""

from __future__ import annotations

import uuid

import pytest
import yaml

from kplane.provider import Cluster, Manager
from kplane.provider.client.resources import CONFIG_MAPS
from kplane.provider.controllers.builder import controller, engage
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.providers.file import FileProvider
from kplane.provider.providers.kind import KindProvider
from kplane.provider.providers.multi import MultiProvider
from kplane.provider.providers.nop import NopProvider
from kplane.provider.providers.secrets import KubeconfigProvider
from kplane.provider.providers.single import SingleProvider

pytestmark = pytest.mark.integration


def kubeconfig(path, config):
    document = yaml.safe_dump(config.to_kubeconfig())
    (path / "kubeconfig.yaml").write_text(document)
    return document


async def by_hand(client, namespace, path):
    provider = ClustersProvider()
    await provider.add(Cluster("a", config=client.config))
    return provider, ["a"]


async def single(client, namespace, path):
    return SingleProvider(Cluster("only", config=client.config)), ["only"]


async def files(client, namespace, path):
    kubeconfig(path, client.config)
    return FileProvider(directories=[path]), ["kubeconfig"]


async def kind(client, namespace, path):
    kubeconfig(path, client.config)
    program = path / "kind"
    program.write_text(f"#!/bin/sh\ncase $2 in clusters) echo fleet-a ;; *) cat {path}/kubeconfig.yaml ;; esac\n")
    program.chmod(0o755)
    return KindProvider(program=str(program)), ["fleet-a"]


async def secret(client, namespace, path):
    body = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "remote", "labels": {"sigs.k8s.io/multicluster-runtime-kubeconfig": "true"}},
        "stringData": {"kubeconfig": kubeconfig(path, client.config)},
    }
    await client.request("POST", f"/api/v1/namespaces/{namespace}/secrets", body=body)
    return KubeconfigProvider(client, namespace=namespace), ["remote"]


async def several(client, namespace, path):
    """Criterion 45: a provider that follows objects engages as `kc#remote`, next to another provider."""
    multi = MultiProvider()
    for name, make in (("kc", secret), ("hand", by_hand)):
        provider, _ = await make(client, namespace, path)
        multi.add_provider(name, provider)
    return multi, ["hand#a", "kc#remote"]


@pytest.mark.parametrize("make", [by_hand, single, files, kind, secret, several], ids=lambda make: make.__name__)
async def test_provider_clusters_have_their_objects_reconciled(client, namespace, tmp_path, eventually, make):
    """Criteria 25 and 26 for each provider: existing, new and updated objects; 34 and 45 for indexes."""
    provider, names = await make(client, namespace, tmp_path)
    await client.create(CONFIG_MAPS, {"metadata": {"name": "existing"}}, namespace=namespace)
    manager, seen = Manager(client.config, provider, name="test"), set()

    async def reconcile(request):
        if request.namespace == namespace and not request.name.startswith("kube-"):
            found = await manager.get_cluster(request.cluster).cache.get(
                CONFIG_MAPS, request.name, namespace=request.namespace
            )
            seen.add((request.cluster, request.name, found.get("data", {}).get("step", "")))

    controller(manager).named("each").for_("v1/ConfigMap").build(reconcile)
    manager.index_field(CONFIG_MAPS, "step", lambda found: [found.get("data", {}).get("step", "")])
    async with manager:
        await eventually(lambda: seen, lambda seen: seen == {(name, "existing", "") for name in names})
        step = uuid.uuid4().hex
        await client.create(CONFIG_MAPS, {"metadata": {"name": "new"}}, namespace=namespace)
        await client.patch(CONFIG_MAPS, "existing", {"data": {"step": step}}, namespace=namespace)
        for name in names:
            await eventually(lambda name=name: {(name, "new", ""), (name, "existing", step)} <= seen)
            found = await manager.get_cluster(name).cache.list(CONFIG_MAPS, field={"step": step})
            assert [obj["metadata"]["name"] for obj in found] == ["existing"]
        assert manager.cluster_names() == names
        assert all(manager.get_cluster(name).came_from(provider) for name in names)


async def test_from_provider_limits_a_source_to_a_member(client, namespace, tmp_path, eventually):
    multi = MultiProvider()
    followed, _ = await secret(client, namespace, tmp_path)
    other, _ = await by_hand(client, namespace, tmp_path)
    multi.add_provider("kc", followed)
    multi.add_provider("hand", other)
    manager, seen, all_seen = Manager(None, multi, name="test"), set(), set()

    async def reconcile(request):
        seen.add(request.cluster)

    async def reconcile_all(request):
        all_seen.add(request.cluster)

    only = engage(from_provider=followed)
    controller(manager).named("one").for_("v1/ConfigMap", only).build(reconcile)
    controller(manager).named("all").for_("v1/ConfigMap").build(reconcile_all)
    async with manager:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace=namespace)
        await eventually(lambda: all_seen, lambda names: names == {"kc#remote", "hand#a"})
        await eventually(lambda: seen, lambda names: names == {"kc#remote"})


async def test_local_cluster_is_available_without_provider_clusters(client, namespace, eventually):
    manager, seen = Manager(client.config, NopProvider(), name="test"), set()

    async def reconcile(request):
        seen.add(str(request))

    controller(manager).named("local").for_("v1/ConfigMap", engage(local=True)).build(reconcile)
    async with manager:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "here"}}, namespace=namespace)
        await eventually(lambda: f"{namespace}/here" in seen)
        assert manager.cluster_names() == []
