"""Clusters from labelled Secrets of a real API server, which also serves as each of these clusters."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses

import pytest
import yaml

from kplane.provider import ClusterNotFound, ClusterNotReady, Manager, ProviderError
from kplane.provider.client.resources import CONFIG_MAPS, SECRETS
from kplane.provider.controllers.builder import controller
from kplane.provider.providers.secrets import KUBECONFIG_LABEL, KubeconfigProvider

pytestmark = pytest.mark.integration


class Secrets:
    """Writes Secrets to the namespace that the provider follows."""

    def __init__(self, client, namespace):
        self.client, self.namespace = client, namespace

    async def put(self, name, kubeconfig, *, key="kubeconfig", labels=None, annotations=None):
        text = kubeconfig if isinstance(kubeconfig, str) else yaml.safe_dump(kubeconfig.to_kubeconfig())
        metadata = {"name": name, "namespace": self.namespace, "annotations": annotations or {}}
        metadata["labels"] = {KUBECONFIG_LABEL: "true"} if labels is None else labels
        data = {key: base64.b64encode(text.encode()).decode()}
        await self.client.apply(SECRETS, {"metadata": metadata, "data": data}, force=True)

    async def patch(self, name, body):
        await self.client.patch(SECRETS, name, body, namespace=self.namespace)

    async def delete(self, name):
        await self.client.delete(SECRETS, name, namespace=self.namespace)


@pytest.fixture
def secrets(client, namespace):
    return Secrets(client, namespace)


def follow(manager, namespace):
    """Run a controller of the ConfigMaps of a namespace. Returns the ConfigMaps that it got, by server."""
    seen = set()

    async def reconcile(request):
        cluster = manager.get_cluster(request.cluster)
        if request.namespace == namespace:
            await cluster.cache.get(CONFIG_MAPS, request.name, namespace=namespace)
            seen.add((cluster.config.server, request.name))

    controller(manager).named("following").for_("v1/ConfigMap").build(reconcile)
    return seen


@contextlib.asynccontextmanager
async def managing(client, namespace):
    async with Manager(None, KubeconfigProvider(client, namespace=namespace), name="test") as manager:
        yield manager


async def test_clusters_follow_labelled_secrets(client, namespace, secrets, eventually, caplog):
    """Criteria 37, 39 and 40: three labelled Secrets yield three names, and other Secrets yield none."""
    for name in ("zoo", "jungle", "island"):
        await secrets.put(name, client.config)
    await secrets.put("unlabelled", client.config, labels={})
    await secrets.put("off", client.config, labels={KUBECONFIG_LABEL: "false"})
    async with managing(client, namespace) as manager:
        await eventually(manager.cluster_names, lambda names: names == ["island", "jungle", "zoo"])
        assert await manager.ready_checks.run() == {"provider": None}
        zoo, engagements = manager.get_cluster("zoo"), manager.clusters.engagements()
        assert zoo.config == client.config
        assert yaml.safe_load(zoo.credentials["kubeconfig"])

        # Criterion 39: an annotation keeps the engagement.
        await secrets.patch("zoo", {"metadata": {"annotations": {"note": "x"}, "labels": {"other": "y"}}})
        # Criterion 69: the provider ignores a Secret without label. It has seen the earlier change by then.
        await secrets.patch("jungle", {"metadata": {"labels": {KUBECONFIG_LABEL: None}}})
        await eventually(manager.cluster_names, lambda names: names == ["island", "zoo"])
        assert manager.get_cluster("zoo") is zoo
        assert [found for found in manager.clusters.engagements() if found.closing] == []
        assert {engagement.generation for engagement in manager.clusters.engagements()} < {
            engagement.generation for engagement in engagements
        }

        # Criterion 40: a deleted Secret removes the name, and so does a Secret that is being deleted.
        await secrets.delete("island")
        await eventually(manager.cluster_names, lambda names: names == ["zoo"])
        with pytest.raises(ClusterNotFound):
            manager.get_cluster("island")
        await secrets.patch("zoo", {"metadata": {"finalizers": ["test.example.com/wait"]}})
        await secrets.delete("zoo")
        await eventually(manager.cluster_names, lambda names: names == [])
        await secrets.patch("zoo", {"metadata": {"finalizers": None}})


async def test_removed_label_disengages_the_cluster(client, namespace, secrets, eventually):
    """Criterion 69: removal of the label disengages the cluster, and adding the label engages it again."""
    await secrets.put("a", client.config)
    async with managing(client, namespace) as manager:
        (engagement,) = await eventually(manager.clusters.engagements)
        await secrets.patch("a", {"metadata": {"labels": {KUBECONFIG_LABEL: None}}})
        await eventually(manager.cluster_names, lambda names: names == [])
        await eventually(lambda: engagement.closed)
        await secrets.patch("a", {"metadata": {"labels": {KUBECONFIG_LABEL: "true"}}})
        await eventually(manager.cluster_names, lambda names: names == ["a"])


async def test_secret_with_new_server_moves_the_watches(client, namespace, secrets, eventually):
    """Criterion 38: after a change of the API server in a Secret, the objects of the new server are seen."""
    other = dataclasses.replace(client.config, server=client.config.server.replace("127.0.0.1", "localhost"))
    await secrets.put("a", client.config)
    async with managing(client, namespace) as manager:
        seen = follow(manager, namespace)
        (engagement,) = await eventually(manager.clusters.engagements)
        await client.create(CONFIG_MAPS, {"metadata": {"name": "first"}}, namespace=namespace)
        await eventually(lambda: (client.config.server, "first") in seen)
        await secrets.put("a", other)
        await eventually(lambda: (other.server, "first") in seen)
        await client.create(CONFIG_MAPS, {"metadata": {"name": "second"}}, namespace=namespace)
        await eventually(lambda: (other.server, "second") in seen)
        assert (client.config.server, "second") not in seen
        assert engagement.closed
        assert manager.cluster_names() == ["a"]


async def test_renewed_token_keeps_the_engagement(client, namespace, secrets, service_account, eventually):
    one = await service_account([])
    two = dataclasses.replace(one, token=f"{one.token}x")
    await secrets.put("a", one)
    async with managing(client, namespace) as manager:
        (engagement,) = await eventually(manager.clusters.engagements)
        await secrets.put("a", two)
        await eventually(lambda: engagement.cluster.config.token, lambda token: token == two.token)
        assert not engagement.closing


async def test_secret_without_kubeconfig_is_skipped(client, namespace, secrets, eventually, caplog):
    """Criterion 41: a missing key and empty data are skipped, the count is stable, other Secrets are unaffected."""
    await secrets.put("empty", "")
    await secrets.put("elsewhere", client.config, key="config")
    await secrets.put("good", client.config)
    async with managing(client, namespace) as manager:
        await eventually(manager.cluster_names, lambda names: names == ["good"])
        await eventually(lambda: caplog.text, lambda text: "its key 'kubeconfig' is empty" in text)
        await eventually(lambda: caplog.text, lambda text: "it has no key 'kubeconfig'" in text)
        (engagement,) = manager.clusters.engagements()
        # A watch delivers in order, so the later Secret shows that the provider saw the earlier Secrets.
        await secrets.put("later", client.config)
        await eventually(manager.cluster_names, lambda names: names == ["good", "later"])
        assert manager.clusters.engagements()[0] is engagement
        await secrets.put("empty", client.config)
        await eventually(manager.cluster_names, lambda names: names == ["empty", "good", "later"])


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ({"exec": {"command": "/bin/false", "apiVersion": "client.authentication.k8s.io/v1"}}, "exec"),
        ({"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}, "refers to a file"),
        ({"client-certificate": "/etc/cert.pem", "client-key": "/etc/key.pem"}, "refers to a file"),
    ],
    ids=["exec", "token file", "certificate file"],
)
async def test_invalid_kubeconfig_keeps_old_cluster_and_logs_cause(
    client, namespace, secrets, eventually, caplog, user, why
):
    await secrets.put("a", client.config)
    async with managing(client, namespace) as manager:
        (engagement,) = await eventually(manager.clusters.engagements)
        document = client.config.to_kubeconfig()
        document["users"][0]["user"] = user
        await secrets.put("a", yaml.safe_dump(document))
        await eventually(lambda: caplog.text, lambda text: "failed to use kubeconfig Secret a: " in text)
        assert why in caplog.text
        await secrets.patch("a", {"data": None})
        await eventually(lambda: caplog.text, lambda text: "it has no key" in text)
        assert manager.clusters.engagements() == [engagement]
        assert not engagement.closing


def at_name(found):
    return found["metadata"]["name"]


def name_of(found):
    return [at_name(found)]


async def test_forty_concurrent_calls_raise_only_not_found_or_not_ready(client, namespace, secrets, eventually):
    """Criterion 42: 40 concurrent get/list/index/remove, while Secrets come and go: no error but ClusterNotFound.

    A cluster that is engaged again may also raise ClusterNotReady, which upstream does not have.
    """
    names = [f"c{number}" for number in range(4)]
    await asyncio.gather(*(secrets.put(name, client.config) for name in names))
    async with managing(client, namespace) as manager:
        await eventually(manager.cluster_names, lambda found: found == names)
        await eventually(lambda: [manager.get_cluster(name) for name in names])
        await client.create(CONFIG_MAPS, {"metadata": {"name": "known"}}, namespace=namespace)
        manager.index_field(CONFIG_MAPS, "name", name_of)
        done, answers, refusals = asyncio.Event(), dict.fromkeys(names, 0), 0

        async def use(number):
            nonlocal refusals
            while not done.is_set():
                name = names[number % len(names)]
                try:
                    cluster = manager.get_cluster(name)
                    assert cluster.name == name
                    listed = await cluster.cache.list(CONFIG_MAPS, namespace=namespace)
                    assert "known" in map(at_name, listed)
                    (found,) = await cluster.cache.list(CONFIG_MAPS, namespace=namespace, field={"name": "known"})
                    assert at_name(found) == "known"
                    assert await cluster.cache.list(CONFIG_MAPS, field={"name": "unknown"}) == []
                    answers[name] += 1
                except (ClusterNotFound, ClusterNotReady):
                    refusals += 1
                if number % 10 == 0:
                    await manager.clusters.remove(name)
                manager.index_field(CONFIG_MAPS, "name", name_of)
                assert set(manager.cluster_names()) <= set(names)
                await asyncio.sleep(0)

        users = [asyncio.create_task(use(number)) for number in range(40)]
        # Some tasks remove clusters after use, so later calls of other tasks may not find them.
        await eventually(lambda: all(answers.values()))
        for _ in range(5):
            await eventually(manager.cluster_names, lambda found: found)
            before = sum(answers.values())
            await asyncio.gather(*(secrets.delete(name) for name in names))
            await asyncio.gather(*(secrets.put(name, client.config) for name in names))
            await eventually(lambda before=before: sum(answers.values()) > before)
        done.set()
        await asyncio.gather(*users)
        for name in names:
            await secrets.patch(name, {"data": {"more": base64.b64encode(b"x").decode()}})
        await eventually(manager.cluster_names, lambda found: found == names)
        assert all(answers.values())
        assert refusals


async def test_provider_with_empty_namespace_is_refused(client):
    with pytest.raises(ProviderError, match="one namespace"):
        KubeconfigProvider(client, namespace="")
