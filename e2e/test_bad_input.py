"""Each mistake gets a message for its author, with a way out, and leaves other tenants unchanged."""

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
def test_kubectl_apply_says_what_is_wrong(
    installation: None, kubectl: Kubectl, kind: str, spec: dict[str, Any], says: str
) -> None:
    """The API server refuses an invalid object, with the field and a way out."""
    body = json.dumps(described(kind, "mistake", **spec))
    assert says in kubectl.refuses("apply", "--dry-run=server", "-f", "-", stdin=body)


def test_a_typing_error_is_refused(installation: None, kubectl: Kubectl) -> None:
    """An unknown field is refused with its name."""
    body = json.dumps(described("ControlPlane", "mistake", modus="Virtual"))
    assert 'unknown field "spec.modus"' in kubectl.refuses("apply", "--dry-run=server", "-f", "-", stdin=body)


def test_the_path_of_data_is_not_changed(acme: Tenant, session_platform: Platform) -> None:
    """An edit that would leave the data behind is refused with the reason."""
    patch = '--patch={"spec":{"virtual":{"clusterPath":"elsewhere"}}}'
    said = session_platform.kubectl.refuses("patch", "controlplane", acme.name, "--type=merge", patch)
    assert "spec.virtual.clusterPath cannot be changed, because the data lies under it" in said


def test_conditions_say_what_to_do(platform: Platform, acme: Tenant, session_platform: Platform) -> None:
    """The operator reports other mistakes in the condition Ready. The status of the neighbours does not change."""
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
    nowhere = {"endpoint": "https://127.0.0.1:9"}
    credentials = platform.create_secret(platform.name("credentials"), allow="endpoint", kubeconfig=kubeconfig)
    private = platform.create_secret(platform.name("private-kubeconfig"), kubeconfig=kubeconfig)
    endpoints: dict[str, dict[str, Any]] = {
        "unreachable": {**nowhere, "credentialsSecretRef": credentials},
        "no-kubeconfig": {**nowhere, "credentialsSecretRef": secret},
        "others-secret": {**nowhere, "credentialsSecretRef": before["kubeconfigSecretRef"]},
        "private-secret": {**nowhere, "credentialsSecretRef": private},
        "others-path": {
            "endpoint": f"https://127.0.0.1:9/clusters/{acme.name}/control-plane",
            "credentialsSecretRef": credentials,
        },
    }
    for stem, spec in endpoints.items():
        platform.create("ControlPlaneEndpoint", platform.name(stem), **spec)
    for stem, (spec, _, _) in mistakes.items():
        platform.create("ControlPlane", platform.name(stem), **spec)
    for stem, (_, reason, says) in mistakes.items():
        assert says in platform.becomes("ControlPlane", platform.name(stem), reason), stem
    now = session_platform.get("ControlPlane", acme.name)["status"]
    # The operator may have measured it meanwhile.
    assert now | {"storage": None} == before | {"storage": None}
    acme.wait_account("default")

    # The message was right: with the class, the control plane becomes Ready.
    platform.create("ControlPlaneClass", platform.name("absent"), deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", platform.name("class-missing"))
    platform.tenant(platform.name("class-missing")).answers()


def test_a_registration_says_what_it_waits_for(platform: Platform, acme: Tenant) -> None:
    """The status names a wrong reference, or a Secret without the label for it. No controllers start."""
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
    said = platform.becomes("ControlPlaneRegistration", curious, "SecretNotAllowed")
    assert 'label it controlplane.kplane.dev/allow-registration="true"' in said
