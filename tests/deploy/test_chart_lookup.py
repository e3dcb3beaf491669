"""What the chart refuses because of what is in the cluster already."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from embedded.handle import Handle
from embedded.kubectl import Kubectl

pytestmark = pytest.mark.integration

RELEASE = "my-kplane"
CLAIM = "data-my-kplane-etcd-0"


@pytest.fixture
def kube(api_server: Handle) -> Kubectl:
    return api_server.kubectl


@pytest.fixture
async def claim_of_one(chart: Any, kube: Kubectl) -> AsyncIterator[None]:
    """The volume of an etcd with one member, as its StatefulSet leaves it behind."""
    stateful_set = chart.render(release=RELEASE).one("StatefulSet", f"{RELEASE}-etcd")
    (template,) = stateful_set["spec"]["volumeClaimTemplates"]
    metadata = {**template["metadata"], "name": CLAIM, "namespace": chart.namespace}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": template["spec"]}
    await kube.apply(json.dumps(claim))
    yield
    await kube.run("delete", "pvc", CLAIM, "-n", chart.namespace, "--wait=false")
    finalizers = '{"metadata":{"finalizers":null}}'
    await kube.run("patch", "pvc", CLAIM, "-n", chart.namespace, "--type=merge", "-p", finalizers)


def install(chart: Any, api_server: Handle, *settings: str) -> str:
    # CRDs are there already, and not Helm's.
    flags = ["--dry-run=server", f"--kubeconfig={api_server.admin_kubeconfig}", "--set=crds.enabled=false"]
    printed: str = chart.helm(
        "install", RELEASE, str(chart.directory), f"--namespace={chart.namespace}", *flags, *settings
    )
    return printed


@pytest.mark.usefixtures("claim_of_one")
def test_the_number_of_members_cannot_change(chart: Any, api_server: Handle) -> None:
    """Two new members beside the old one would be a second, empty etcd under the same name."""
    with pytest.raises(chart.refused) as caught:
        install(chart, api_server, "--set=etcd.replicas=3")
    assert "the number cannot be changed. Set etcd.replicas to 1." in str(caught.value)
    assert "kubectl rollout status" in install(chart, api_server, "--set=etcd.replicas=1")


def test_the_number_of_members_is_free_at_the_first_installation(chart: Any, api_server: Handle) -> None:
    assert "kubectl rollout status" in install(chart, api_server, "--set=etcd.replicas=3")
