"""Webhook configurations: their content, and how a process with self-signed certificates applies them."""

from __future__ import annotations

import asyncio
import base64
import contextlib

import pytest

from kplane.provider import ClusterConfig, Manager, ProviderError, Resource
from kplane.provider.client.resources import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kplane.provider.errors import Forbidden, NotServed
from kplane.provider.testing import FakeCluster
from kplane.provider.webhooks import AdmissionRule, SelfSigned, Webhooks
from kplane.provider.webhooks.configurations import at_host

NOWHERE = ClusterConfig("https://127.0.0.1:1")
GADGETS = Resource("example.com/v1", "Gadget", "gadgetry", namespaced=True)
HOST = "127.0.0.1"


async def answer(admission):
    """Allow the request."""


@pytest.fixture
async def cluster(monkeypatch):
    """The local cluster of all managers."""
    made = FakeCluster("")
    monkeypatch.setattr(Manager, "local", made)
    yield made
    await made.aclose()


@pytest.fixture
def webhooks(tmp_path, cluster):
    """Webhooks of a manager that does not run."""
    return Webhooks(Manager(NOWHERE, name="test"), certificate=tmp_path, key=tmp_path)


class TestConfigurations:
    async def test_configuration_selects_creates_and_updates_of_the_kind(self, webhooks):
        webhooks.validate("apps/v1/Deployment")(answer)
        assert await webhooks.configurations("mine", service="system/hooks") == [
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "ValidatingWebhookConfiguration",
                "metadata": {"name": "mine"},
                "webhooks": [
                    {
                        "name": "deployment.v1.apps",
                        "clientConfig": {
                            "service": {
                                "namespace": "system",
                                "name": "hooks",
                                "port": 443,
                                "path": "/validate-apps-v1-deployment",
                            }
                        },
                        "rules": [
                            {
                                "apiGroups": ["apps"],
                                "apiVersions": ["v1"],
                                "resources": ["deployments"],
                                "operations": ["CREATE", "UPDATE"],
                            }
                        ],
                        "failurePolicy": "Fail",
                        "matchPolicy": "Equivalent",
                        "sideEffects": "None",
                        "timeoutSeconds": 10,
                        "admissionReviewVersions": ["v1"],
                    }
                ],
            }
        ]

    async def test_configuration_has_the_fields_of_the_rule(self, webhooks):
        rule = AdmissionRule(
            operations=("DELETE",),
            resources=("pods", "pods/status"),
            failure_policy="Ignore",
            match_policy="Exact",
            timeout_seconds=3,
            namespace_selector={"matchLabels": {"team": "a"}},
            object_selector={"matchLabels": {"app": "b"}},
        )
        webhooks.mutate("v1/Pod", rule)(answer)
        [found] = await webhooks.configurations("mine", url="https://hooks.test/clusters/a/b/")
        [webhook] = found["webhooks"]
        assert found["kind"] == "MutatingWebhookConfiguration"
        assert webhook["name"] == "pod.v1.core"
        assert webhook["clientConfig"] == {"url": "https://hooks.test/clusters/a/b/mutate--v1-pod"}
        assert webhook["rules"][0]["operations"] == ["DELETE"]
        assert webhook["rules"][0]["resources"] == ["pods", "pods/status"]
        fields = ("failurePolicy", "matchPolicy", "timeoutSeconds", "namespaceSelector", "objectSelector")
        assert [webhook[field] for field in fields] == [
            "Ignore",
            "Exact",
            3,
            {"matchLabels": {"team": "a"}},
            {"matchLabels": {"app": "b"}},
        ]

    async def test_configurations_are_made_for_each_verb_and_sorted(self, webhooks):
        for kind in ("v1/Secret", "v1/Pod"):
            webhooks.validate(kind)(answer)
        webhooks.mutate(GADGETS)(answer)
        mutating, validating = await webhooks.configurations("mine", url="https://hooks.test")
        assert [webhook["name"] for webhook in mutating["webhooks"]] == ["gadget.v1.example.com"]
        assert mutating["webhooks"][0]["rules"][0]["resources"] == ["gadgetry"]
        assert [webhook["name"] for webhook in validating["webhooks"]] == ["pod.v1.core", "secret.v1.core"]

    async def test_configuration_of_a_kind_that_is_not_served_raises(self, webhooks):
        webhooks.validate("example.com/v1/Widget")(answer)
        with pytest.raises(NotServed, match="apply its CustomResourceDefinition"):
            await webhooks.configurations("mine", url="https://hooks.test")

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "give service= or url="),
            ({"service": "a/b", "url": "https://hooks.test"}, "give service= or url="),
            ({"service": "hooks.system.svc"}, "is not written as 'namespace/name'"),
            ({"url": "http://hooks.test"}, "does not begin with 'https://'"),
        ],
    )
    async def test_configurations_raise_without_one_usable_address(self, webhooks, given, message):
        with pytest.raises(ProviderError, match=message):
            await webhooks.configurations("mine", **given)

    def test_rule_refuses_invalid_values(self):
        with pytest.raises(ProviderError, match="are tuples"):
            AdmissionRule(operations="CREATE")
        with pytest.raises(ProviderError, match="between 1 and 30"):
            AdmissionRule(timeout_seconds=31)

    def test_host_of_a_service_is_reached_as_service_and_others_by_url(self):
        service = {"namespace": "system", "name": "hooks", "port": 443, "path": "/a"}
        assert at_host("hooks.system.svc", 9443)("/a") == {"service": service}
        assert at_host("localhost", 9443)("/a") == {"url": "https://localhost:9443/a"}
        assert at_host("::1", 9443)("/a") == {"url": "https://[::1]:9443/a"}


class TestSelfSigned:
    @contextlib.asynccontextmanager
    async def serving(self, describe):
        """Serve the functions that `describe` adds."""
        manager = Manager(NOWHERE, name="test")
        options = SelfSigned(HOST, configuration="mine")
        webhooks = Webhooks(manager, self_signed=options, host=HOST, port=0)
        describe(webhooks)
        manager.add(webhooks)
        async with manager:
            await asyncio.wait_for(webhooks.listening.wait(), 30)
            yield webhooks

    async def webhooks_of(self, cluster, resource=VALIDATING_WEBHOOK_CONFIGURATIONS):
        """Return the webhooks of a configuration by name, once each has a caBundle; otherwise None."""
        if not await cluster.client.exists(resource, "mine"):
            return None
        found = (await cluster.client.get(resource, "mine"))["webhooks"]
        complete = all("caBundle" in webhook["clientConfig"] for webhook in found)
        return {webhook["name"]: webhook for webhook in found} if complete else None

    async def test_configurations_are_applied_with_the_bundle_of_the_process(self, cluster, eventually, caplog):
        caplog.set_level("INFO")

        def describe(webhooks):
            webhooks.validate("v1/Pod")(answer)
            webhooks.mutate("v1/Secret")(answer)

        async with self.serving(describe) as webhooks:
            found = await eventually(lambda: self.webhooks_of(cluster))
            config = found["pod.v1.core"]["clientConfig"]
            assert config["url"] == f"https://{HOST}:{webhooks.address[1]}/validate--v1-pod"
            assert base64.b64decode(config["caBundle"]) == webhooks._certificate._bundle(b"")
            assert await eventually(lambda: self.webhooks_of(cluster, MUTATING_WEBHOOK_CONFIGURATIONS))
            assert f"serving webhooks on {HOST}:{webhooks.address[1]}: /mutate--v1-secret, /validate--v1-pod" in (
                caplog.text
            )
        assert "it does not exist" not in caplog.text

    async def test_former_webhooks_are_removed_and_bundles_of_others_kept(self, cluster, eventually):
        def describe_two(webhooks):
            for kind in ("v1/Pod", "v1/Secret"):
                webhooks.validate(kind)(answer)

        async with self.serving(describe_two) as webhooks:
            first = webhooks._certificate._bundle(b"")
            await eventually(lambda: self.webhooks_of(cluster), lambda found: found is not None and len(found) == 2)
        async with self.serving(lambda webhooks: webhooks.validate("v1/Secret")(answer)) as webhooks:
            both = webhooks._certificate._bundle(first)

            def written(found):
                return found and base64.b64decode(found["secret.v1.core"]["clientConfig"]["caBundle"]) == both

            found = await eventually(lambda: self.webhooks_of(cluster), written)
            assert [*found] == ["secret.v1.core"]

    async def test_deleted_configuration_is_applied_again(self, cluster, eventually):
        async with self.serving(lambda webhooks: webhooks.validate("v1/Pod")(answer)):
            await eventually(lambda: self.webhooks_of(cluster))
            await cluster.client.delete(VALIDATING_WEBHOOK_CONFIGURATIONS, "mine")
            await eventually(lambda: self.webhooks_of(cluster))

    async def test_change_of_another_manager_stays(self, cluster, eventually):
        async with self.serving(lambda webhooks: webhooks.validate("v1/Pod")(answer)):
            await eventually(lambda: self.webhooks_of(cluster))
            webhook = {"name": "pod.v1.core", "namespaceSelector": {"matchLabels": {"a": "b"}}}
            body = {"metadata": {"name": "mine"}, "webhooks": [webhook]}
            await cluster.client.apply(VALIDATING_WEBHOOK_CONFIGURATIONS, body, field_manager="other")
        async with self.serving(lambda webhooks: webhooks.validate("v1/Pod")(answer)) as webhooks:
            url = f"https://{HOST}:{webhooks.address[1]}/validate--v1-pod"
            found = await eventually(lambda: self.webhooks_of(cluster), lambda found: found and url in str(found))
            assert found["pod.v1.core"]["namespaceSelector"] == {"matchLabels": {"a": "b"}}

    async def test_refused_configuration_is_logged_and_retried(self, cluster, eventually, caplog):
        refusal = Forbidden(403, "Forbidden", "you must not patch")
        cluster.fail(refusal, verb="patch", kind=VALIDATING_WEBHOOK_CONFIGURATIONS)
        async with self.serving(lambda webhooks: webhooks.validate("v1/Pod")(answer)):
            await eventually(lambda: self.webhooks_of(cluster))
        assert "failed to apply ValidatingWebhookConfiguration mine: PATCH" in caplog.text
