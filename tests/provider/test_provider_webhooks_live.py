"""Webhooks that a real API server calls: for two clusters, and for two versions of a kind."""

from __future__ import annotations

import base64
import contextlib
import operator

import pytest

from kplane.pki.primitives import create_authority, issue_serving
from kplane.provider import Cluster, Forbidden, Invalid, Manager, Resource, Sharded
from kplane.provider.client.resources import (
    CONFIG_MAPS,
    CUSTOM_RESOURCE_DEFINITIONS,
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kplane.provider.errors import ServerError
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.webhooks import AdmissionRule, Denied, SelfSigned, Webhooks

pytestmark = pytest.mark.integration

GADGETS = Resource("webhooks.example.com/v1", "Gadget", "gadgets", namespaced=True)
NEW_GADGETS = Resource("webhooks.example.com/v2", "Gadget", "gadgets", namespaced=True)


def configurations(kind):
    return Resource("admissionregistration.k8s.io/v1", kind, f"{kind.lower()}s", namespaced=False)


class World:
    def __init__(self, client, namespace, webhooks, bundle):
        self.client, self.namespace, self.webhooks = client, namespace, webhooks
        self.bundle = base64.b64encode(bundle).decode()

    def client_config(self, path):
        bundle = {"caBundle": self.bundle} if self.bundle else {}
        return {"url": "https://{}:{}".format(*self.webhooks.address) + path, **bundle}

    @contextlib.asynccontextmanager
    async def configured(self, kind, path, *, name=None):
        """Have the API server call `path` for writes of ConfigMaps in the namespace."""
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["*"]}
        webhook = {
            "name": "config-maps.example.com",
            "clientConfig": self.client_config(path),
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        resource, name = configurations(kind), name or f"{self.namespace}-{kind.lower()}"
        await self.client.create(resource, {"metadata": {"name": name}, "webhooks": [webhook]})
        try:
            yield
        finally:
            await self.client.delete(resource, name)

    async def put(self, name, **data):
        body = {"metadata": {"name": name, "annotations": {"a/b": "1"}}, "data": data}
        return await self.client.create(CONFIG_MAPS, body, namespace=self.namespace)


@pytest.fixture
async def world(client, namespace, tmp_path):
    authority = create_authority("webhooks")
    pair = issue_serving(authority, common_name="webhooks", hosts=["127.0.0.1"])
    (tmp_path / "tls.crt").write_bytes(pair.certificate)
    (tmp_path / "tls.key").write_bytes(pair.key)
    fleet = ClustersProvider()
    await fleet.add(Cluster("eu/member", config=client.config))
    # This process gets no shard, because the namespace for its Leases is missing. So it works on no cluster.
    coordinator = Sharded(client, namespace="there-is-none", identity="x")
    manager = Manager(client.config, fleet, coordinator=coordinator, name="test")
    webhooks = Webhooks(manager, certificate=tmp_path / "tls.crt", key=tmp_path / "tls.key", host="127.0.0.1", port=0)

    @webhooks.validate("v1/ConfigMap")
    async def check(admission):
        if admission.operation == "DELETE":
            return
        found = await admission.cluster.client.exists(CONFIG_MAPS, "rules", namespace=admission.namespace)
        if found and "size" not in (admission.object.get("data") or {}):
            raise Denied(f"data.size is missing in {admission.cluster.name or 'the local cluster'}: set it", code=422)

    @webhooks.mutate("v1/ConfigMap")
    async def default(admission):
        admission.object.setdefault("data", {}).setdefault("size", "1")
        admission.object["metadata"]["annotations"]["a/b"] = "~"

    @webhooks.convert("webhooks.example.com/Gadget")
    def convert(found, version):
        if version.endswith("/v2"):
            found["spec"] = {"sizes": [found["spec"]["size"]]}
        else:
            found["spec"] = {"size": found["spec"]["sizes"][0]}
        return found

    manager.add(webhooks)
    async with manager:
        await webhooks.listening.wait()
        yield World(client, namespace, webhooks, authority.certificate)


async def test_any_replica_denies_requests_of_each_cluster(world, eventually):
    await world.put("rules", size="0")
    async with world.configured("ValidatingWebhookConfiguration", "/clusters/eu/member/validate--v1-configmap"):

        async def refusal():
            try:
                await world.client.create(CONFIG_MAPS, {"metadata": {"generateName": "x-"}}, namespace=world.namespace)
            except (Invalid, Forbidden) as error:
                return str(error)
            return None

        said = await eventually(refusal)
        assert (
            'admission webhook "config-maps.example.com" denied the request: data.size is missing in eu/member' in said
        )
        assert (await world.put("good", size="1"))["data"] == {"size": "1"}
        await world.client.delete(CONFIG_MAPS, "good", namespace=world.namespace)


async def test_mutation_changes_objects_before_the_write(world, eventually):
    async with world.configured("MutatingWebhookConfiguration", "/mutate--v1-configmap"):
        numbers = iter(range(1000))

        async def changed():
            found = await world.put(f"m-{next(numbers)}")
            return found.get("data"), found["metadata"]["annotations"]

        await eventually(changed, lambda found: found == ({"size": "1"}, {"a/b": "~"}))
        assert (await world.put("its-own", size="2"))["data"] == {"size": "2"}


async def test_conversion_shows_an_object_in_each_version(world, client, namespace, eventually):
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [
        {"name": version, "served": True, "storage": version == "v1", "schema": schema} for version in ("v1", "v2")
    ]
    conversion = {
        "strategy": "Webhook",
        "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": world.client_config("/convert")},
    }
    names = {"kind": "Gadget", "plural": "gadgets", "listKind": "GadgetList"}
    spec = {"group": "webhooks.example.com", "scope": "Namespaced", "names": names, "versions": versions}
    definition = {"metadata": {"name": "gadgets.webhooks.example.com"}, "spec": {**spec, "conversion": conversion}}
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, definition)
    try:
        await eventually(lambda: _served(client))
        await client.create(GADGETS, {"metadata": {"name": "a"}, "spec": {"size": 3}}, namespace=namespace)
        assert (await client.get(NEW_GADGETS, "a", namespace=namespace))["spec"] == {"sizes": [3]}
        await client.create(NEW_GADGETS, {"metadata": {"name": "b"}, "spec": {"sizes": [4, 5]}}, namespace=namespace)
        found = await client.list(GADGETS, namespace=namespace)
        assert [item["spec"] for item in found.items] == [{"size": 3}, {"size": 4}]
        with pytest.raises((Invalid, ServerError), match="see the log of the webhook"):
            await client.create(NEW_GADGETS, {"metadata": {"name": "c"}, "spec": {}}, namespace=namespace)
    finally:
        await client.delete(CUSTOM_RESOURCE_DEFINITIONS, "gadgets.webhooks.example.com")
        # The API server requests conversions until the definition is gone. A server that ends in the middle of a
        # connection attempt would leave that connection open.
        await eventually(
            lambda: client.exists(CUSTOM_RESOURCE_DEFINITIONS, "gadgets.webhooks.example.com"), operator.not_
        )


async def _served(client):
    found = await client.get(CUSTOM_RESOURCE_DEFINITIONS, "gadgets.webhooks.example.com")
    conditions = found.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)


async def test_self_signed_certificates_are_trusted_by_the_api_server(client, namespace, eventually):
    """The configuration has no caBundle until the process writes its own."""
    name = f"{namespace}-self-signed"
    manager = Manager(client.config, name="test")
    webhooks = Webhooks(manager, self_signed=SelfSigned("127.0.0.1", validating=(name,)), host="127.0.0.1", port=0)

    @webhooks.validate("v1/ConfigMap")
    async def check(admission):
        raise Denied("no more")

    manager.add(webhooks)
    async with manager:
        await webhooks.listening.wait()
        world = World(client, namespace, webhooks, b"")
        async with world.configured("ValidatingWebhookConfiguration", "/validate--v1-configmap", name=name):

            async def refusal():
                try:
                    await client.create(CONFIG_MAPS, {"metadata": {"generateName": "x-"}}, namespace=namespace)
                except (Forbidden, ServerError) as error:
                    return str(error)
                return ""

            await eventually(refusal, lambda said: "denied the request: no more" in said)


async def test_applied_configurations_are_valid_and_lose_former_webhooks(client, namespace, eventually):
    name = f"{namespace}-applied"
    rule = AdmissionRule(namespace_selector={"matchLabels": {"kubernetes.io/metadata.name": namespace}})

    @contextlib.asynccontextmanager
    async def serving(*kinds):
        manager = Manager(client.config, name="test")
        options = SelfSigned("127.0.0.1", configuration=name)
        webhooks = Webhooks(manager, self_signed=options, host="127.0.0.1", port=0)

        @webhooks.mutate("v1/ConfigMap", rule)
        async def default(admission):
            admission.object["data"] = {"size": "1"}

        for kind in kinds:

            @webhooks.validate(kind, rule)
            async def check(admission):
                raise Denied("no more")

        manager.add(webhooks)
        async with manager:
            yield

    async def validated():
        found = await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, name)
        return sorted(webhook["name"] for webhook in found["webhooks"] if "caBundle" in webhook["clientConfig"])

    async def refusal():
        try:
            body = {"metadata": {"generateName": "x-"}, "stringData": {}}
            await client.create("v1/Secret", body, namespace=namespace)
        except (Forbidden, ServerError) as error:
            return str(error)
        return ""

    async def changed():
        try:
            return await client.create(CONFIG_MAPS, {"metadata": {"generateName": "x-"}}, namespace=namespace)
        except ServerError:
            return {}

    try:
        async with serving("v1/Secret", "v1/Service"):
            await eventually(refusal, lambda said: 'webhook "secret.v1.core" denied the request: no more' in said)
            await eventually(changed, lambda found: found.get("data") == {"size": "1"})
            assert await validated() == ["secret.v1.core", "service.v1.core"]
        async with serving("v1/Secret"):
            await eventually(validated, lambda names: names == ["secret.v1.core"])
    finally:
        for resource in (MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS):
            await client.delete(resource, name)
