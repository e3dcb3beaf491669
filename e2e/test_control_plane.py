"""A control plane of a class: what its owner gets, and what other tenants do not."""

from __future__ import annotations

import json
import re

import pytest
import yaml

from e2e.kubectl import Kubectl
from e2e.platform import Platform, condition
from e2e.tenant import Tenant, widgets


def test_the_status_says_where_it_is(acme: Tenant, session_platform: Platform) -> None:
    """The status has all that a user needs to use the control plane."""
    found = session_platform.get("ControlPlane", acme.name)
    status = found["status"]
    assert status["phase"] == "Ready"
    assert status["observedGeneration"] == found["metadata"]["generation"]
    assert condition(found)["status"] == "True"
    assert status["endpoint"].startswith("https://")
    urls = {each["type"]: each["url"] for each in status["endpoints"]}
    assert set(urls) == {"Internal", "External", "Join"}
    assert urls["Internal"] == status["endpoint"]
    assert status["kubeconfigSecretRef"] == {
        "name": f"controlplane-{acme.name}-kubeconfig",
        "namespace": f"kplane-cp-{acme.name}",
    }
    assert status["clusterPath"] == acme.name
    assert status["deletionPolicy"] == "Destroy"
    assert status["version"] == json.loads(acme.kubectl("get", "--raw=/version"))["gitVersion"]


def test_kubectl_get_shows_what_matters(acme: Tenant, session_platform: Platform) -> None:
    """`kubectl get controlplanes` shows the main columns, `-o wide` the others."""
    kubectl = session_platform.kubectl
    header, line = kubectl("get", "controlplane", acme.name).splitlines()
    assert header.split() == ["NAME", "MODE", "PHASE", "READY", "AGE"]
    assert line.split()[:4] == [acme.name, "Virtual", "Ready", "True"]
    header, line = kubectl("get", "controlplane", acme.name, "-o", "wide").splitlines()
    assert {"CLASS", "VERSION", "ENDPOINT"} <= set(header.split())
    assert session_platform.get("ControlPlane", acme.name)["status"]["endpoint"] in line.split()


@pytest.mark.smoke("A kubeconfig for it lies in a Secret")
def test_the_published_kubeconfig_is_an_administrators(acme: Tenant) -> None:
    """The holder of the kubeconfig may do everything in the control plane with plain kubectl."""
    assert acme.kubectl("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"
    acme.add_namespace("kubeconfig-works")
    assert "kubeconfig-works" in acme.kubectl.names("namespaces")
    assert {"default", "kube-system", "kube-public", "kube-node-lease"} <= acme.kubectl.names("namespaces")


def test_the_secret_has_every_key_it_promises(acme: Tenant, session_platform: Platform) -> None:
    """The Secret has a kubeconfig for programs in the management cluster, one for users elsewhere, and the CA."""
    published = session_platform.kubeconfigs(acme.name)
    assert set(published) == {"kubeconfig", "kubeconfig-external", "ca.crt"}
    status = session_platform.get("ControlPlane", acme.name)["status"]
    urls = {each["type"]: each["url"] for each in status["endpoints"]}
    assert urls["Internal"].encode() in published["kubeconfig"]
    assert urls["External"].encode() in published["kubeconfig-external"]
    assert published["ca.crt"].startswith(b"-----BEGIN CERTIFICATE-----")


@pytest.mark.smoke("own CRDs")
def test_types_of_ones_own_are_ones_own(acme: Tenant, globex: Tenant) -> None:
    """A tenant adds a CustomResourceDefinition and uses it. Other tenants do not see it."""
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


def test_the_same_name_is_another_object_elsewhere(acme: Tenant, globex: Tenant) -> None:
    """Two tenants use the same names with different content."""
    for tenant in (acme, globex):
        tenant.keep("owner", tenant.name)
    assert (acme.kept("owner"), globex.kept("owner")) == (acme.name, globex.name)


@pytest.mark.smoke("own certificates")
def test_credentials_of_one_tenant_open_no_other(acme: Tenant, globex: Tenant, session_platform: Platform) -> None:
    """A leaked kubeconfig opens its own control plane only."""
    ours, theirs = (
        yaml.safe_load(session_platform.kubeconfigs(tenant.name)["kubeconfig-external"]) for tenant in (acme, globex)
    )
    ours["clusters"][0]["cluster"] = theirs["clusters"][0]["cluster"]
    mixed = session_platform.private_file("mixed.kubeconfig", content=yaml.safe_dump(ours).encode())
    said = Kubectl(acme.kubectl.program, mixed).refuses("get", "namespaces")
    assert re.search(r"Unauthorized|must be logged in|asked for the client to provide credentials", said), said


@pytest.mark.parametrize("mode", ["Virtual", "Dedicated"])
def test_a_control_plane_needs_no_class(platform: Platform, mode: str) -> None:
    """A name and a mode are enough for an API server. Its controllers wait for a registration."""
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
