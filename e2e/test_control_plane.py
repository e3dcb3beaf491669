"""A control plane of a class: its status, kubeconfigs and API, and the isolation of tenants."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from e2e.kubectl import Kubectl
from e2e.platform import Platform, condition
from e2e.tenant import Tenant, widgets


def test_status_has_endpoints_secret_path_and_version(acme: Tenant, session_platform: Platform) -> None:
    """The status has all fields that a user needs to connect."""
    control_plane = session_platform.get("ControlPlane", acme.name)
    status = control_plane["status"]
    assert status["phase"] == "Ready"
    assert status["observedGeneration"] == control_plane["metadata"]["generation"]
    assert condition(control_plane)["status"] == "True"
    assert status["endpoint"].startswith("https://")
    urls = {endpoint["type"]: endpoint["url"] for endpoint in status["endpoints"]}
    assert set(urls) == {"Internal", "External", "Join"}
    assert urls["Internal"] == status["endpoint"]
    assert status["kubeconfigSecretRef"] == {
        "name": f"controlplane-{acme.name}-kubeconfig",
        "namespace": f"kplane-cp-{acme.name}",
    }
    assert status["clusterPath"] == acme.name
    assert status["deletionPolicy"] == "Destroy"
    assert status["version"] == json.loads(acme.kubectl("get", "--raw=/version"))["gitVersion"]


def test_kubectl_get_prints_main_and_wide_columns(acme: Tenant, session_platform: Platform) -> None:
    """`kubectl get controlplanes` shows the main columns, `-o wide` the others."""
    kubectl = session_platform.kubectl
    header, line = kubectl("get", "controlplane", acme.name).splitlines()
    assert header.split() == ["NAME", "MODE", "PHASE", "READY", "AGE"]
    assert line.split()[:4] == [acme.name, "Virtual", "Ready", "True"]
    header, line = kubectl("get", "controlplane", acme.name, "-o", "wide").splitlines()
    assert {"CLASS", "VERSION", "ENDPOINT"} <= set(header.split())
    assert session_platform.get("ControlPlane", acme.name)["status"]["endpoint"] in line.split()


@pytest.mark.smoke("A kubeconfig for it lies in a Secret")
def test_published_kubeconfig_allows_all_verbs_and_resources(acme: Tenant) -> None:
    """The kubeconfig works with plain kubectl."""
    assert acme.kubectl("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"
    acme.add_namespace("kubeconfig-works")
    assert "kubeconfig-works" in acme.kubectl.names("namespaces")
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= acme.kubectl.names("namespaces")


def test_secret_has_internal_and_external_kubeconfig_and_ca(acme: Tenant, session_platform: Platform) -> None:
    """`kubeconfig` is for programs in the management cluster, `kubeconfig-external` for users elsewhere."""
    published = session_platform.kubeconfigs(acme.name)
    assert set(published) == {"kubeconfig", "kubeconfig-external", "ca.crt"}
    status = session_platform.get("ControlPlane", acme.name)["status"]
    urls = {endpoint["type"]: endpoint["url"] for endpoint in status["endpoints"]}
    assert urls["Internal"].encode() in published["kubeconfig"]
    assert urls["External"].encode() in published["kubeconfig-external"]
    assert published["ca.crt"].startswith(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.smoke("own CRDs")
def test_crd_is_usable_by_its_tenant_and_unknown_to_others(acme: Tenant, globex: Tenant) -> None:
    acme.kubectl.apply(widgets("acme.example.com"))
    acme.kubectl("wait", "--for=condition=Established", "crd/widgets.acme.example.com", "--timeout=120s")
    body = {
        "apiVersion": "acme.example.com/v1",
        "kind": "Widget",
        "metadata": {"name": "first", "namespace": "default"},
        "spec": {"size": 3},
    }
    acme.kubectl.apply(body)
    assert acme.kubectl.get("widget", "first")["spec"]["size"] == 3
    assert "widgets.acme.example.com" not in globex.kubectl.names("customresourcedefinitions")
    assert "the server doesn't have a resource type" in globex.kubectl.refuses("get", "widgets")


def test_same_object_name_has_different_data_in_each_tenant(acme: Tenant, globex: Tenant) -> None:
    for tenant in (acme, globex):
        tenant.keep("owner", tenant.name)
    assert (acme.kept("owner"), globex.kept("owner")) == (acme.name, globex.name)


@pytest.mark.smoke("own certificates")
def test_credentials_of_a_tenant_are_refused_by_another_tenant(
    acme: Tenant, globex: Tenant, session_platform: Platform
) -> None:
    """A leaked kubeconfig gives access to its own control plane only."""
    own_config, other_config = (
        yaml.safe_load(session_platform.kubeconfigs(tenant.name)["kubeconfig-external"]) for tenant in (acme, globex)
    )
    own_config["clusters"][0]["cluster"] = other_config["clusters"][0]["cluster"]
    mixed = session_platform.private_file("mixed.kubeconfig", content=yaml.safe_dump(own_config).encode())
    error = Kubectl(acme.kubectl.program, mixed).refuses("get", "namespaces")
    assert re.search(r"Unauthorized|must be logged in|asked for the client to provide credentials", error), error


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
def test_control_plane_without_class_becomes_ready(platform: Platform, mode: str) -> None:
    """A name and a mode are enough for an API server. No registration is created."""
    name = platform.name("plain")
    platform.create("ControlPlane", name, mode=mode, deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    tenant = platform.tenant(name)
    tenant.answers()
    tenant.keep("note", mode)
    assert tenant.kept("note") == mode
    assert platform.find("ControlPlaneRegistration", name) is None
    platform.delete("ControlPlane", name)
    assert platform.kubectl.find("namespace", f"kplane-cp-{name}") is None
