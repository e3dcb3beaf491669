"""Checks the installation after `helm install`."""

from __future__ import annotations

import pytest

from e2e.installation import NAMESPACE, RELEASE, Helm, require_unused
from e2e.kubectl import Kubectl
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually

_KINDS = (
    "controlplanes",
    "controlplaneclasses",
    "controlplaneendpoints",
    "controlplaneregistrations",
    "controlplanesnapshots",
)


@pytest.mark.parametrize("plural", _KINDS)
def test_kind_is_served_and_explained(installation: None, kubectl: Kubectl, plural: str) -> None:
    """`kubectl explain` documents the fields of each of the five kinds."""
    resource = f"{plural}.controlplane.kplane.dev"
    kubectl("wait", "--for=condition=Established", f"crd/{resource}", "--timeout=120s")
    explained = kubectl("explain", f"{resource}.spec", "--recursive=false")
    assert "DESCRIPTION" in explained
    assert "FIELDS" in explained
    assert "<empty>" not in explained


@pytest.mark.parametrize(("short", "kind"), [("cp", "ControlPlane"), ("cpclass", "ControlPlaneClass")])
def test_kind_is_listed_by_its_short_name(installation: None, kubectl: Kubectl, short: str, kind: str) -> None:
    """`kubectl get cp` is short for `kubectl get controlplanes`."""
    assert {obj["kind"] for obj in kubectl.items(short)} <= {kind}


@pytest.mark.k8s_needs("pods")
def test_helm_test_passes(installation: None, helm: Helm) -> None:
    """`helm test` reaches both operators in spite of the NetworkPolicies, and needs no rights."""
    assert "Succeeded" in helm("test", RELEASE, "--timeout=300s", timeout_seconds=360)


def test_control_plane_gets_api_server_and_controllers(
    tenants: tuple[Tenant, Tenant], session_platform: Platform
) -> None:
    """A ControlPlane is enough: controlplane-operator runs an API server, and mcm its controllers."""
    for tenant in tenants:
        assert session_platform.resolves(tenant.name)["ready"] is True
        tenant.wait_account("default")


def test_suite_refuses_cluster_with_control_planes(tenants: tuple[Tenant, Tenant], kubectl: Kubectl) -> None:
    with pytest.raises(AssertionError, match=f"it has control planes: .*{tenants[0].name}.* use another cluster"):
        require_unused(kubectl)


@pytest.mark.k8s_needs("pods")
@pytest.mark.parametrize(
    ("kind", "name", "port"), [("deployment", "kplane-operator", 8080), ("statefulset", "kplane-mcm", 8081)]
)
def test_operators_are_rolled_out_and_answer_readyz(
    installation: None, kubectl: Kubectl, kind: str, name: str, port: int
) -> None:
    kubectl("rollout", "status", f"{kind}/{name}", "-n", NAMESPACE, "--timeout=120s")
    selector = kubectl.get(kind, name, "-n", NAMESPACE)["spec"]["selector"]["matchLabels"]
    labels = ",".join(f"{key}={value}" for key, value in selector.items())
    [pod] = kubectl.names("pods", "-n", NAMESPACE, "-l", labels)
    raw = f"/api/v1/namespaces/{NAMESPACE}/pods/http:{pod}:{port}/proxy/readyz"
    assert eventually(f"{name} /readyz", lambda: kubectl("get", "--raw", raw))


@pytest.mark.k8s_needs("pods")
def test_helm_reports_release_as_deployed(installation: None, helm: Helm) -> None:
    status = helm.status()
    assert status is not None
    assert status["status"] == "deployed"
