"""Uninstalls kplane in the documented order."""

from __future__ import annotations

import json

import pytest

from e2e.installation import GROUP, NAMESPACE, RELEASE, Helm, require_nothing_left
from e2e.kubectl import Kubectl
from e2e.platform import Platform
from e2e.tenant import Tenant

pytestmark = [pytest.mark.k8s_needs("pods"), pytest.mark.timeout(900, func_only=True)]


def test_helm_refuses_to_uninstall_with_control_planes(acme: Tenant, helm: Helm, kubectl: Kubectl) -> None:
    """The error names the control planes. The tenant's API server continues to serve."""
    before = kubectl.names("deployments,statefulsets,secrets", "-n", NAMESPACE)
    with pytest.raises(AssertionError, match=rf"there are control planes: .*{acme.name}.* Delete them first"):
        helm("uninstall", RELEASE, "--timeout=200s", timeout_seconds=210)
    assert kubectl.names("deployments,statefulsets,secrets", "-n", NAMESPACE) >= before
    acme.answers()
    revision = json.loads(helm("history", RELEASE, "--output=json"))[-1]["revision"]
    helm("rollback", RELEASE, str(revision), "--wait", "--timeout=300s", timeout_seconds=310)
    status = helm.status()
    assert status is not None
    assert status["status"] == "deployed"


def test_uninstall_in_documented_order_leaves_no_object(
    tenants: tuple[Tenant, Tenant], session_platform: Platform, kubectl: Kubectl, helm: Helm
) -> None:
    """Delete control planes while the operator runs, then the release, then the kinds."""
    dedicated = session_platform.name("last")
    session_platform.create("ControlPlane", dedicated, mode="Dedicated", deletionPolicy="Destroy")
    session_platform.becomes_ready("ControlPlane", dedicated)

    wait = ("--all", "--timeout=300s")
    kubectl("delete", f"controlplanes.{GROUP}", *wait, timeout_seconds=310)
    kinds = ("controlplaneregistrations", "controlplaneendpoints", "controlplaneclasses", "controlplanesnapshots")
    for kind in kinds:
        kubectl("delete", f"{kind}.{GROUP}", *wait, timeout_seconds=310)
    helm("uninstall", RELEASE, "--wait", "--timeout=300s", timeout_seconds=310)
    crds = {name for name in kubectl.names("customresourcedefinitions") if name.endswith(f".{GROUP}")}
    assert len(crds) == 5, "uninstalling the release must not delete anybody's control planes with their kinds"
    kubectl("delete", "customresourcedefinitions", *sorted(crds), "--timeout=60s", timeout_seconds=70)
    kubectl("delete", "namespace", NAMESPACE, "--timeout=200s", timeout_seconds=210)

    assert helm.status() is None
    require_nothing_left(kubectl)
