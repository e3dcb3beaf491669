"""Kinds in a spelling that no cluster serves, and objects without the namespace they need."""

from __future__ import annotations

import re

import pytest

from kplane.provider import Client, ClusterConfig, Manager, NotServed, ProviderError, controller
from kplane.provider.client.kinds import BUILT_IN, parse_kind
from kplane.provider.client.resources import CONFIG_MAPS, Resource
from kplane.provider.errors import KindMisspelled
from kplane.provider.providers.clusters import ClustersProvider
from kplane.provider.testing import FakeCluster

MISSPELLED = {
    "v1/configmaps": "v1/ConfigMap",
    "v1/configmap": "v1/ConfigMap",
    "v1/ConfigMaps": "v1/ConfigMap",
    "apps/v1/deployments": "apps/v1/Deployment",
    "networking.k8s.io/v1/ingresses": "networking.k8s.io/v1/Ingress",
    "v1/Deployment": "apps/v1/Deployment",
    "v1/deployments": "apps/v1/Deployment",
    "v2/Pod": "v1/Pod",
    "apps/v1/Pod": "v1/Pod",
    "core/v1/ConfigMap": "v1/ConfigMap",
    "core/v1/Event": "v1/Event",
    "apps/Deployment": "apps/v1/Deployment",
    "apps/stable/Deployment": "apps/v1/Deployment",
    "extensions/v1beta1/Ingress": "networking.k8s.io/v1/Ingress",
    "networking/v1/Ingress": "networking.k8s.io/v1/Ingress",
    "autoscaling/HorizontalPodAutoscaler": "autoscaling/v2/HorizontalPodAutoscaler",
}
OLD_VERSIONS = {
    "apps/v1beta1/Deployment": "apps/v1/Deployment",
    "batch/v1beta1/CronJob": "batch/v1/CronJob",
    "networking.k8s.io/v1beta1/Ingress": "networking.k8s.io/v1/Ingress",
}
"""Kinds in versions that some releases of Kubernetes serve."""
WIDGETS = Resource("example.com/v1", "Widget", "widgets", namespaced=True)
LOCAL = ClusterConfig("https://127.0.0.1:1")


async def reconcile(_):
    pass


@pytest.mark.parametrize(("kind", "right"), MISSPELLED.items())
def test_controller_of_misspelled_kind_is_refused_with_a_suggestion(kind, right):
    manager = Manager(LOCAL, name="test")
    with pytest.raises(ProviderError, match=re.escape(f"no cluster serves {kind!r}: the kind is written {right!r}")):
        controller(manager).for_(kind).build(reconcile)


def test_parse_kind_accepts_every_correct_spelling():
    assert [str(parse_kind(kind)) for kind in BUILT_IN] == list(BUILT_IN)
    for kind in ("example.com/v1/configmaps", "example.com/stable/Service", *OLD_VERSIONS):
        assert str(parse_kind(kind)) == kind


@pytest.mark.parametrize("kind", ["example.com/v1/widgets", "example.com/v1/widget", "example.com/v1/WIDGET"])
async def test_client_names_the_spelling_that_the_server_has(kind):
    async with FakeCluster("a", kinds=[WIDGETS]).client as client:
        with pytest.raises(KindMisspelled, match=r"the kind is written 'example\.com/v1/Widget'"):
            await client.resource(kind)
        with pytest.raises(NotServed, match="CustomResourceDefinition") as caught:
            await client.resource("example.com/v1/Gadget")
        assert not isinstance(caught.value, KindMisspelled)


@pytest.mark.parametrize(("kind", "right"), OLD_VERSIONS.items())
async def test_client_suggests_the_version_of_a_built_in_kind(kind, right):
    async with FakeCluster("a").client as client:
        with pytest.raises(KindMisspelled, match=re.escape(f"the kind is written {right!r}")):
            await client.resource(kind)


async def test_client_suggests_no_built_in_kind_for_a_custom_group():
    async with FakeCluster("a").client as client:
        with pytest.raises(NotServed, match="CustomResourceDefinition"):
            await client.resource("serving.knative.dev/v1/Service")


async def test_controller_logs_misspelled_kind_of_a_cluster_as_error(caplog, eventually):
    fleet = ClustersProvider()
    await fleet.add(FakeCluster("a", kinds=[WIDGETS]))
    manager = Manager(None, fleet, name="test")
    controller(manager).for_("example.com/v1/widgets").build(reconcile)
    async with manager:
        [record] = await eventually(lambda: [each for each in caplog.records if "failed to watch" in each.message])
    assert record.levelname == "ERROR"
    assert "the kind is written 'example.com/v1/Widget'" in record.message


async def test_create_without_namespace_is_refused_before_it_is_sent():
    async with Client(LOCAL) as client:
        with pytest.raises(ProviderError, match=r"failed to create ConfigMap 'm': .* set metadata.namespace") as caught:
            await client.create(CONFIG_MAPS, {"metadata": {"name": "m"}})
    assert type(caught.value) is ProviderError
