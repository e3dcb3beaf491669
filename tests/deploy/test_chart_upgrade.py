"""Upgrade from a former version of the chart."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kplane.embedded.handle import Handle
from kplane.embedded.kubectl import Kubectl

pytestmark = pytest.mark.integration

RELEASE = "former"
COMPONENTS = {("Deployment", "operator"): None, ("StatefulSet", "mcm"): "mcm", ("StatefulSet", "etcd"): "etcd-peers"}
"""Workloads that exist since the first chart, with the Service of their pods."""


@pytest.mark.parametrize("component", COMPONENTS)
def test_immutable_fields_of_workloads_have_their_former_values(chart: Any, component: tuple[str, str]) -> None:
    """Kubernetes refuses changed values, and so the whole upgrade or rollback fails."""
    kind, name = component
    spec = chart.render().one(kind, f"kplane-{name}")["spec"]
    labels = {"name": "kplane", "instance": "kplane", "component": name}
    assert spec["selector"] == {"matchLabels": {f"app.kubernetes.io/{key}": labels[key] for key in labels}}
    service = COMPONENTS[component]
    if service is not None:
        assert (spec["serviceName"], spec["podManagementPolicy"]) == (f"kplane-{service}", "Parallel")


def test_role_refs_of_bindings_have_their_former_values(chart: Any) -> None:
    """A roleRef is immutable."""
    rendered = chart.render()
    bindings = [item for item in rendered.manifests if item["kind"].endswith("RoleBinding")]
    assert len(bindings) > 5
    for binding in bindings:
        name = binding["metadata"]["name"]
        # The operator binds this ClusterRole in namespaces of control planes too.
        kind = "ClusterRole" if name == "kplane-operator-secrets" else binding["kind"].removesuffix("Binding")
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (kind, name)


@pytest.fixture
async def mcm_of_before(chart: Any, api_server: Handle) -> AsyncIterator[Kubectl]:
    """Create the mcm of a former chart, which had no mcm.replicas and no sharding."""
    kube = api_server.kubectl
    stateful_set = chart.render(release=RELEASE).one("StatefulSet", f"{RELEASE}-kplane-mcm")
    (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
    container["args"] = [
        argument for argument in container["args"] if not argument.startswith(("--cluster-sh", "--cluster-lease"))
    ]
    await kube.apply(json.dumps(stateful_set))
    yield kube
    await kube.run("delete", "statefulset", f"{RELEASE}-kplane-mcm", "-n", chart.namespace)


async def test_chart_refuses_second_mcm_beside_one_without_sharding(
    chart: Any, api_server: Handle, mcm_of_before: Kubectl
) -> None:
    def install(replicas: int) -> str:
        flags = [f"--namespace={chart.namespace}", f"--kubeconfig={api_server.admin_kubeconfig}", "--dry-run=server"]
        flags += ["--set=crds.enabled=false", f"--set=mcm.replicas={replicas}"]
        printed: str = chart.helm("upgrade", "--install", "--take-ownership", RELEASE, str(chart.directory), *flags)
        return printed

    with pytest.raises(chart.refused) as caught:
        install(2)
    assert "upgrade with mcm.replicas=1 and --wait first, and then raise it" in str(caught.value)
    assert "kubectl rollout status" in install(1)
    # Apply the StatefulSet of that upgrade, which has sharding.
    shared = chart.render(release=RELEASE).one("StatefulSet", f"{RELEASE}-kplane-mcm")
    await mcm_of_before.apply(json.dumps(shared))
    assert "kubectl rollout status" in install(2)
