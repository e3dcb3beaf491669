"""Invalid objects get a message with a remedy, and do not affect other tenants."""

from __future__ import annotations

import json
from typing import Any

import pytest

from e2e.kubectl import Kubectl
from e2e.platform import Platform, described
from e2e.tenant import Tenant

_REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown mode": ("ControlPlane", {"mode": "Hybrid"}, 'spec.mode: Unsupported value: "Hybrid"'),
    "unknown policy": ("ControlPlane", {"deletionPolicy": "Forget"}, "spec.deletionPolicy: Unsupported value"),
    "path with capitals": (
        "ControlPlane",
        {"virtual": {"clusterPath": "Tenant_1"}},
        "spec.virtual.clusterPath must consist of lower-case letters, digits and '-'",
    ),
    "path out of its place": (
        "ControlPlane",
        {"virtual": {"clusterPath": "../other"}},
        "spec.virtual.clusterPath must consist of lower-case letters, digits and '-'",
    ),
    "settings of the other mode": (
        "ControlPlane",
        {"mode": "Dedicated", "virtual": {"clusterPath": "x"}},
        "spec.virtual is for spec.mode Virtual only: remove spec.virtual or set spec.mode so",
    ),
    "endpoint without encryption": (
        "ControlPlaneEndpoint",
        {"endpoint": "http://api.example.org"},
        "spec.endpoint must be an https URL",
    ),
    "credentials in a URL": (
        "ControlPlaneEndpoint",
        {"endpoint": "https://admin:secret@api.example.org"},
        "put credentials into a Secret",
    ),
    "registration of nothing": ("ControlPlaneRegistration", {"services": ["Controllers"]}, "spec.controlPlaneRef"),
    "unknown service": (
        "ControlPlaneRegistration",
        {"controlPlaneRef": {"name": "x"}, "services": ["Nodes"]},
        'spec.services[0]: Unsupported value: "Nodes"',
    ),
    "unknown profile": (
        "ControlPlaneClass",
        {"controllers": {"profile": "Everything"}},
        "spec.controllers.profile: Unsupported value",
    ),
}


@pytest.mark.parametrize(("kind", "spec", "says"), _REFUSED.values(), ids=_REFUSED)
def test_apply_of_invalid_object_is_refused_with_field_and_remedy(
    installation: None, kubectl: Kubectl, kind: str, spec: dict[str, Any], says: str
) -> None:
    body = json.dumps(described(kind, "mistake", **spec))
    assert says in kubectl.refuses("apply", "--dry-run=server", "-f", "-", stdin=body)


def test_unknown_field_is_refused_with_its_name(installation: None, kubectl: Kubectl) -> None:
    body = json.dumps(described("ControlPlane", "mistake", modus="Virtual"))
    assert 'unknown field "spec.modus"' in kubectl.refuses("apply", "--dry-run=server", "-f", "-", stdin=body)


def test_change_of_cluster_path_is_refused_with_reason(acme: Tenant, session_platform: Platform) -> None:
    """The data are stored below the path, so a change would leave them behind."""
    patch = '--patch={"spec":{"virtual":{"clusterPath":"elsewhere"}}}'
    error = session_platform.kubectl.refuses("patch", "controlplane", acme.name, "--type=merge", patch)
    assert "spec.virtual.clusterPath cannot be changed, because the data lies under it" in error


def test_ready_condition_has_reason_and_remedy_of_each_mistake(
    platform: Platform, acme: Tenant, session_platform: Platform
) -> None:
    """Condition Ready reports mistakes that the API server accepts. Other control planes keep their status."""
    before = session_platform.get("ControlPlane", acme.name)["status"]
    secret = platform.create_secret(platform.name("no-kubeconfig"), allow="endpoint", other="key")
    mistakes: dict[str, tuple[dict[str, Any], str, str]] = {
        "class-missing": (
            {"classRef": {"name": platform.name("absent")}},
            "ClassNotFound",
            f"ControlPlaneClass {platform.name('absent')}, named by spec.classRef, does not exist; create it",
        ),
        "path-in-use": (
            {"virtual": {"clusterPath": acme.name}},
            "ClusterPathInUse",
            f"is in use by control plane {acme.name}",
        ),
        "endpoint-missing": (
            {"endpointRef": {"name": platform.name("absent")}},
            "EndpointPending",
            f"ControlPlaneEndpoint {platform.name('absent')}, named by spec.endpointRef, does not exist; create it",
        ),
        "unreachable": (
            {"endpointRef": {"name": platform.name("unreachable")}, "mode": "Dedicated"},
            "EndpointUnreachable",
            "127.0.0.1:9",
        ),
        "no-kubeconfig": (
            {"endpointRef": {"name": platform.name("no-kubeconfig")}},
            "CredentialsMissing",
            "has no key 'kubeconfig' with a kubeconfig",
        ),
        "others-secret": (
            {"endpointRef": {"name": platform.name("others-secret")}},
            "SecretNotAllowed",
            "name a Secret of your own",
        ),
        "private-secret": (
            {"endpointRef": {"name": platform.name("private-secret")}},
            "SecretNotAllowed",
            'label it controlplane.kplane.dev/allow-endpoint="true"',
        ),
        "others-path": (
            {"endpointRef": {"name": platform.name("others-path")}},
            "EndpointInvalid",
            f"is the address of clusterPath '{acme.name}'",
        ),
    }
    kubeconfig = session_platform.kubeconfigs(acme.name)["kubeconfig"].decode()
    unreachable = {"endpoint": "https://127.0.0.1:9"}
    credentials = platform.create_secret(platform.name("credentials"), allow="endpoint", kubeconfig=kubeconfig)
    private = platform.create_secret(platform.name("private-kubeconfig"), kubeconfig=kubeconfig)
    endpoints: dict[str, dict[str, Any]] = {
        "unreachable": {**unreachable, "credentialsSecretRef": credentials},
        "no-kubeconfig": {**unreachable, "credentialsSecretRef": secret},
        "others-secret": {**unreachable, "credentialsSecretRef": before["kubeconfigSecretRef"]},
        "private-secret": {**unreachable, "credentialsSecretRef": private},
        "others-path": {
            "endpoint": f"https://127.0.0.1:9/clusters/{acme.name}/control-plane",
            "credentialsSecretRef": credentials,
        },
    }
    for stem, spec in endpoints.items():
        platform.create("ControlPlaneEndpoint", platform.name(stem), **spec)
    for stem, (spec, _, _) in mistakes.items():
        platform.create("ControlPlane", platform.name(stem), **spec)
    for stem, (_, reason, message) in mistakes.items():
        assert message in platform.becomes("ControlPlane", platform.name(stem), reason), stem
    after = session_platform.get("ControlPlane", acme.name)["status"]
    # The operator may have measured the storage meanwhile.
    assert after | {"storage": None} == before | {"storage": None}
    acme.wait_account("default")

    # The remedy of the message works: with the class, the control plane becomes Ready.
    platform.create("ControlPlaneClass", platform.name("absent"), deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", platform.name("class-missing"))
    platform.tenant(platform.name("class-missing")).answers()


def test_registration_status_names_missing_or_private_reference(platform: Platform, acme: Tenant) -> None:
    """The message names the missing control plane, or the label that the Secret lacks."""
    absent, curious = platform.name("absent"), platform.name("curious")
    platform.create("ControlPlaneRegistration", absent, controlPlaneRef={"name": absent}, services=["Controllers"])
    assert f"control plane {absent} does not exist" in platform.becomes(
        "ControlPlaneRegistration", absent, "ControlPlaneNotFound"
    )
    secret = platform.create_secret(platform.name("private"), kubeconfig="{}")
    platform.create(
        "ControlPlaneRegistration",
        curious,
        controlPlaneRef={"name": acme.name},
        kubeconfigSecretRef=secret,
        services=["Controllers"],
    )
    message = platform.becomes("ControlPlaneRegistration", curious, "SecretNotAllowed")
    assert 'label it controlplane.kplane.dev/allow-registration="true"' in message
