"""Upgrades the installation. Tenants keep their data and credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.installation import NAMESPACE, Helm
from e2e.kubectl import Kubectl
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
"""Settings for CoreDNS and a second network with DNS servers."""
_RECIPIENT = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"


@pytest.fixture
def upgraded(helm: Helm) -> Iterator[Helm]:
    """Helm, with the suite's settings restored afterwards."""
    yield helm
    helm.install()


def test_upgrade_does_not_start_if_backup_fails(acme: Tenant, upgraded: Helm, kubectl: Kubectl) -> None:
    """Helm makes the backup first. If the backup fails, Helm reports the reason and leaves the operator unchanged."""
    upgraded.install()
    events = kubectl.items("events", "-n", NAMESPACE, "--field-selector=involvedObject.name=kplane-before-upgrade")
    assert "Completed" in {event["reason"] for event in events}

    acme.keep("before", "the backup")
    secret = {"access-key-id": "a", "secret-access-key": "b"}
    metadata = {"name": "nowhere", "namespace": NAMESPACE}
    kubectl.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": secret})
    args = kubectl.get("deployment", "kplane-operator", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    bucket = ["url=s3://nowhere/kplane", "endpoint=https://127.0.0.1:1", "region=a", "credentialsSecret=nowhere"]
    settings = [f"etcd.backup.bucket.{setting}" for setting in bucket]
    with pytest.raises(AssertionError, match=r"failed to save a backup: [\s\S]*So the upgrade was not begun"):
        upgraded.install(f"etcd.backup.recipients={{{_RECIPIENT}}}", "operator.logLevel=ERROR", *settings)
    after = kubectl.get("deployment", "kplane-operator", "-n", NAMESPACE)["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    assert after == args
    acme.answers()
    assert acme.kept("before") == "the backup"


def test_upgrade_with_changed_values_keeps_tenants(
    platform: Platform, session_platform: Platform, acme: Tenant, upgraded: Helm
) -> None:
    """`helm upgrade` replaces the operators. Tenants keep data and kubeconfigs, and get the new settings."""
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
