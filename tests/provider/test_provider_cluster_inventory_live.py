"""ClusterProfiles on a real API server, which also serves as each of their clusters."""

from __future__ import annotations

import base64
import json
import sys

import pytest

from kplane.provider import Client, ClusterNotFound, Manager
from kplane.provider.client.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, CONFIG_MAPS, SECRETS
from kplane.provider.controllers.builder import controller
from kplane.provider.providers.inventory import CLUSTER_PROFILES, ClusterInventoryProvider
from kplane.provider.providers.inventory.access import AccessProviders

pytestmark = pytest.mark.integration

CONSUMER = "kplane-tests"

PLUGIN = """
import json, os, pathlib, sys
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
token = pathlib.Path(sys.argv[1], info["spec"]["cluster"]["config"]["account"]).read_text()
print(json.dumps({"apiVersion": info["apiVersion"], "kind": "ExecCredential", "status": {"token": token}}))
"""


class Hub:
    """Writes the objects that a cluster manager would write, for clusters reached by `config`."""

    def __init__(self, client, namespace, config, reader, directory, telling):
        self.client, self.namespace, self.config = client, namespace, config
        self.reader, self.directory, self.telling = reader, directory, telling

    def name(self, name):
        return f"{self.namespace}/{name}"

    def access(self):
        (self.directory / "account").write_text(self.config.token)
        (self.directory / "plugin.py").write_text(PLUGIN)
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(self.directory / "plugin.py"), str(self.directory)],
            "env": None,
            "provideClusterInfo": True,
        }
        path = self.directory / "access.json"
        path.write_text(json.dumps({"providers": [{"name": "files", "execConfig": plugin}]}))
        return AccessProviders.load(path)

    async def profile(self, name, **metadata):
        body = {"metadata": {"name": name, **metadata}, "spec": {"clusterManager": {"name": "tests"}}}
        await self.client.create(CLUSTER_PROFILES, body, namespace=self.namespace)

    async def status(self, name, *, healthy="True", **fields):
        conditions = [{"type": "ControlPlaneHealthy", "status": healthy}]
        body = {"status": {"conditions": conditions, **fields}}
        await self.client.patch(CLUSTER_PROFILES, name, body, namespace=self.namespace, subresource="status")

    def offer(self, *, server=None, name="files"):
        cluster = {
            "server": server or self.config.server,
            "certificate-authority-data": base64.b64encode(self.config.ca_data).decode(),
            "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"account": "account"}}],
        }
        return [{"name": "other", "cluster": {"server": "https://other.test"}}, {"name": name, "cluster": cluster}]

    async def secret(self, name, profile, *, server=None, consumer=CONSUMER, token=None):
        document = self.config.with_server(server or self.config.server).to_kubeconfig()
        if token:
            document["users"][0]["user"] = {"token": token}
        labels = {"x-k8s.io/cluster-inventory-consumer": consumer, "x-k8s.io/cluster-profile": profile}
        data = {"Config": base64.b64encode(json.dumps(document).encode()).decode()}
        body = {"metadata": {"name": name, "namespace": self.namespace, "labels": labels}, "data": data}
        await self.client.apply(SECRETS, body, force=True)

    async def say(self, name, text):
        body = {"metadata": {"name": name, "namespace": self.namespace}, "data": {"text": text}}
        await self.client.apply(CONFIG_MAPS, body, force=True)

    def run(self, **options):
        return self.telling(ClusterInventoryProvider(self.reader, namespace=self.namespace, **options))


@pytest.fixture
async def hub(client, namespace, install, service_account, tmp_path, telling):
    await install(CLUSTER_PROFILES)
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    reading = [
        {"apiGroups": ["multicluster.x-k8s.io"], "resources": ["clusterprofiles"], "verbs": ["list", "watch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["list", "watch"]},
    ]
    # The identity has exactly the permissions that the documentation lists.
    async with Client(await service_account(reading), field_manager="kplane") as reader:
        yield Hub(client, namespace, await service_account(rules), reader, tmp_path, telling)


@pytest.fixture
async def everywhere(client, hub, allowed):
    """Let the identity of the clusters read ConfigMaps of all namespaces, as caches do."""
    claims = hub.config.token.split(".")[1]
    user = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["sub"]
    name = {"name": hub.namespace}
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]
    await client.create(CLUSTER_ROLES, {"metadata": name, "rules": rules})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **name}
    subjects = [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
    await client.create(CLUSTER_ROLE_BINDINGS, {"metadata": name, "roleRef": role, "subjects": subjects})
    await allowed(user, rules[0])
    yield
    await client.delete(CLUSTER_ROLE_BINDINGS, hub.namespace)
    await client.delete(CLUSTER_ROLES, hub.namespace)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("way", ["secret", "accessProviders", "credentialProviders"])
async def test_each_strategy_reconciles_objects_of_the_cluster(hub, eventually, way):
    """Criterion 46: existing, new and updated objects, by a Secret and by a plugin, from both fields of the status."""
    await hub.say("existing", "one")
    await hub.profile("a")
    if way == "secret":
        await hub.secret("for-a", "a")
        await hub.status("a")
        options = {"consumer": CONSUMER}
    else:
        await hub.status("a", **{way: hub.offer()})
        options = {"access": hub.access()}
    manager = Manager(None, ClusterInventoryProvider(hub.reader, namespace=hub.namespace, **options), name="test")
    texts = {}

    async def reconcile(request):
        if request.namespace == hub.namespace:
            cache = manager.get_cluster(request.cluster).cache
            found = await cache.get(CONFIG_MAPS, request.name, namespace=request.namespace)
            texts[request.cluster, request.name] = (found.get("data") or {}).get("text")

    controller(manager).named("texts").for_(CONFIG_MAPS).build(reconcile)
    name = hub.name("a")
    async with manager:
        await eventually(lambda: texts.get((name, "existing")), lambda text: text == "one")
        assert await manager.ready_checks.run() == {"provider": None}
        await hub.say("new", "two")
        await eventually(lambda: texts.get((name, "new")), lambda text: text == "two")
        await hub.say("existing", "three")
        await eventually(lambda: texts.get((name, "existing")), lambda text: text == "three")
        assert {cluster for cluster, _ in texts} == {name}


async def test_profile_with_new_server_is_engaged_again(hub, eventually):
    """Criterion 47: a kubeconfig that changes re-engages, by a Secret; a renewed token goes into the engagement."""
    name, moved = hub.name("a"), "https://127.0.0.1:1"
    await hub.profile("a")
    await hub.status("a")
    async with hub.run(consumer=CONSUMER) as fleet:
        await hub.secret("for-a", "a")
        await eventually(lambda: fleet.get(name))
        (engagement,) = fleet.engagements()
        # Credentials are renewed also while the profile is not healthy.
        await hub.status("a", healthy="False")
        await hub.secret("for-a", "a", token="renewed")
        await eventually(lambda: fleet.get(name).config.token, lambda token: token == "renewed")
        assert not engagement.closed
        await hub.secret("for-a", "a", server=moved)
        await eventually(lambda: fleet.get(name).config.server, lambda server: server == moved)
        assert engagement.closed


async def test_profile_with_new_access_is_engaged_again(hub, eventually, caplog):
    """Criterion 47: a kubeconfig that changes re-engages, by access providers."""
    name, moved = hub.name("a"), "https://127.0.0.1:1"
    await hub.profile("a")
    async with hub.run(access=hub.access()) as fleet:
        await hub.status("a", accessProviders=hub.offer(name="nobodys"))
        await eventually(lambda: caplog.text, lambda text: "its access providers are nobodys, other" in text)
        await hub.status("a", credentialProviders=hub.offer(), accessProviders=None)
        await eventually(lambda: fleet.get(name).config.server, lambda server: server == hub.config.server)
        (engagement,) = fleet.engagements()
        await hub.status("a", accessProviders=hub.offer(server=moved))
        await eventually(lambda: fleet.get(name).config.server, lambda server: server == moved)
        assert engagement.closed


async def test_caller_readiness_replaces_condition(hub, eventually):
    """Criterion 48: the readiness function of the caller replaces the condition."""
    for name in ("healthy", "ready"):
        await hub.profile(name)
        await hub.secret(f"for-{name}", name)
    await hub.status("healthy")
    await hub.status("ready", healthy="False", version={"kubernetes": "1.36.3"})

    def versioned(profile):
        return "version" in (profile.get("status") or {})

    async with hub.run(consumer=CONSUMER) as fleet:
        await eventually(fleet.names, lambda names: names == [hub.name("healthy")])
    async with hub.run(consumer=CONSUMER, ready=versioned) as fleet:
        await eventually(fleet.names, lambda names: names == [hub.name("ready")])


async def test_profile_needs_exactly_one_secret_and_disengages_on_deletion(hub, eventually, caplog):
    client, name = hub.client, hub.name("a")
    await hub.profile("a", finalizers=["test.example/held"])
    await hub.status("a")
    await hub.secret("somebody-elses", "a", consumer="another")
    async with hub.run(consumer=CONSUMER) as fleet:
        await eventually(lambda: caplog.text, lambda text: "no Secret is labelled for it" in text)
        await hub.secret("one", "a")
        await eventually(lambda: fleet.get(name))
        (engagement,) = fleet.engagements()
        await hub.secret("two", "a", token="two")
        await eventually(lambda: caplog.text, lambda text: "the Secrets one, two are labelled for it" in text)
        assert fleet.get(name).config.token == hub.config.token
        await hub.secret("one", "b")
        await eventually(lambda: fleet.get(name).config.token, lambda token: token == "two")
        await client.delete(SECRETS, "two", namespace=hub.namespace)
        await eventually(lambda: caplog.text.count("no Secret is labelled for it"), lambda count: count > 1)
        assert not engagement.closed

        await client.delete(CLUSTER_PROFILES, "a", namespace=hub.namespace)
        await eventually(lambda: engagement.closed)
        with pytest.raises(ClusterNotFound):
            fleet.get(name)
        await client.patch(CLUSTER_PROFILES, "a", {"metadata": {"finalizers": None}}, namespace=hub.namespace)


async def test_cluster_has_ids_of_profile_as_attributes(hub, eventually):
    ids = [{"name": "cluster.clusterset.k8s.io", "value": "one"}, {"name": "clusterset.k8s.io", "value": "all"}]
    await hub.profile("a")
    async with hub.run(access=hub.access(), properties=("clusterset.k8s.io", "region")) as clusters:
        offers = hub.offer()
        await hub.status("a", accessProviders=offers, properties=[*ids, {"name": "nodes", "value": "3"}])
        first = await eventually(lambda: clusters.get(hub.name("a")))
        assert first.attributes == {"clusterset.k8s.io": "all"}
        moved = [*ids, {"name": "nodes", "value": "4"}, {"name": "region", "value": "north"}]
        await hub.status("a", accessProviders=offers, properties=moved)
        found = {"clusterset.k8s.io": "all", "region": "north"}
        await eventually(lambda: clusters.get(hub.name("a")).attributes, lambda attributes: attributes == found)
    async with hub.run(access=hub.access()) as clusters:
        made = await eventually(lambda: clusters.get(hub.name("a")))
        assert made.attributes == {cluster_id["name"]: cluster_id["value"] for cluster_id in ids}
