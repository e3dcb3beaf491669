"""Upgrades the installation. Tenants keep their data and credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.installation import Helm
from e2e.operators import Operators
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually

pytestmark = [pytest.mark.k8s_needs("pods"), pytest.mark.timeout(900, func_only=True)]

_NETWORK = "198.51.100.0/24"
_DNS = (
    r"networkPolicy.dns[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=kube-system",
    "networkPolicy.dns[0].podSelector.matchLabels.k8s-app=kube-dns",
    f"networkPolicy.dns[1].ipBlock.cidr={_NETWORK}",
)
"""A second network that answers DNS, beside CoreDNS."""


@pytest.fixture
def upgraded(helm: Helm) -> Iterator[Helm]:
    """Helm, with the suite's settings restored afterwards."""
    yield helm
    helm.install()


def test_changed_values_keep_the_tenants(
    platform: Platform, session_platform: Platform, acme: Tenant, upgraded: Helm
) -> None:
    """`helm upgrade` replaces the operators. Tenants are served meanwhile, and get the new settings."""
    acme.keep("before", "the upgrade")
    published = session_platform.kubeconfigs(acme.name)
    operators = Operators(platform.kubectl, None)
    former = operators.running()

    upgraded.install("operator.logLevel=INFO", "mcm.logLevel=info", *_DNS)
    operators.wait_back(former)

    acme.answers()
    assert acme.kept("before") == "the upgrade"
    assert session_platform.kubeconfigs(acme.name) == published
    session_platform.becomes_ready("ControlPlane", acme.name)
    acme.add_namespace("after-the-upgrade")

    def egress() -> str:
        policy = platform.kubectl.get("networkpolicy", "kube-apiserver", "-n", f"kplane-cp-{acme.name}")
        return json.dumps(policy["spec"]["egress"])

    eventually("the tenant's NetworkPolicy follows the values", egress, lambda found: _NETWORK in found)
    assert upgraded.status() is not None
