"""Two operators: the standby takes over if the leader is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from e2e.installation import NAMESPACE
from e2e.kubectl import Kubectl
from e2e.platform import Platform
from e2e.waiting import eventually

pytestmark = pytest.mark.k8s_needs("pods")

_OPERATOR = ("deployment/kplane-operator", "-n", NAMESPACE)
_PODS = ("-n", NAMESPACE, "-l", "app.kubernetes.io/component=operator")


@pytest.fixture
def two_operators(kubectl: Kubectl) -> Iterator[None]:
    """Run a second operator for a test."""
    _scale(kubectl, 2)
    yield
    _scale(kubectl, 1)


def _scale(kubectl: Kubectl, replicas: int) -> None:
    kubectl("scale", *_OPERATOR, f"--replicas={replicas}")
    kubectl("rollout", "status", *_OPERATOR, "--timeout=200s", timeout_seconds=210)
    eventually(
        f"{replicas} Pods of the operator",
        lambda: len(kubectl.names("pods", *_PODS)),
        lambda found: found == replicas,
    )


def _holder(kubectl: Kubectl) -> str:
    """Return the name of the leader's Pod; empty if there is none."""
    spec = kubectl.get("lease", "kplane-operator", "-n", "kube-system").get("spec", {})
    return str(spec.get("holderIdentity") or "").partition("_")[0].removeprefix(f"{NAMESPACE}/")


@pytest.mark.usefixtures("two_operators")
def test_standby_leads_after_forced_deletion_of_leader(platform: Platform, kubectl: Kubectl) -> None:
    """The deleted leader does not release its Lease."""
    former_leader = eventually("an operator that works", lambda: _holder(kubectl))
    standbys = set(kubectl.names("pods", *_PODS)) - {former_leader}
    kubectl("delete", "pod", former_leader, "-n", NAMESPACE, "--grace-period=0", "--force")
    name = platform.name("taken-over")
    platform.create("ControlPlane", name, deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    # The former standby leads, not the replacement of the deleted Pod.
    assert {_holder(kubectl)} == standbys
