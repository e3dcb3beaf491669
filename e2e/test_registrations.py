"""Controllers run for a control plane exactly if a registration asks for them."""

from __future__ import annotations

import time

import pytest

from e2e.platform import Platform
from e2e.tenant import Tenant

_SECONDS = 30.0
"""Time limit for a registration to follow its control plane."""


@pytest.fixture(scope="module")
def alone(module_platform: Platform, unregistered: str) -> Tenant:
    """A control plane without a registration."""
    name = module_platform.name("alone")
    module_platform.create("ControlPlane", name, classRef={"name": unregistered})
    module_platform.becomes_ready("ControlPlane", name)
    return module_platform.tenant(name)


@pytest.mark.smoke("resolves registrations")
def test_default_services_of_class_create_registration(acme: Tenant, session_platform: Platform) -> None:
    """The control plane owns the registration that the operator creates."""
    registration = session_platform.get("ControlPlaneRegistration", acme.name)
    owner = session_platform.get("ControlPlane", acme.name)
    assert [reference["uid"] for reference in registration["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
    status = session_platform.resolves(acme.name)
    assert status["services"] == ["Controllers"]
    assert status["resolvedEndpoint"] == owner["status"]["endpoint"]
    assert status["resolvedKubeconfigSecretRef"] == owner["status"]["kubeconfigSecretRef"]
    assert status["controllers"]["profile"] == "Nodeless"
    acme.wait_account("default")


def test_registration_waits_for_later_control_plane(platform: Platform, unregistered: str) -> None:
    """Manifests can be applied in any order. The status names the missing object."""
    name = platform.name("early")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    assert name in platform.becomes("ControlPlaneRegistration", name, "ControlPlaneNotFound")
    platform.create("ControlPlane", name, classRef={"name": unregistered})
    platform.becomes_ready("ControlPlane", name)
    platform.resolves(name, timeout_seconds=_SECONDS)
    platform.tenant(name).wait_account("default")


def test_registration_starts_controllers_and_deletion_ends_them(platform: Platform, alone: Tenant) -> None:
    """A Deployment gets Pods only after the registration, and no ReplicaSet after its deletion."""
    alone.unattended("before")
    name = platform.name("by-hand")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": alone.name}, services=["controllers"])
    start = time.monotonic()
    platform.resolves(name, control_plane=alone.name, timeout_seconds=_SECONDS)
    alone.wait_pods("before")
    assert time.monotonic() - start < 120

    platform.delete("ControlPlaneRegistration", name)
    alone.wait_unattended("after")


def test_edit_of_services_ends_and_restarts_controllers(platform: Platform, alone: Tenant) -> None:
    name = platform.name("switched")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": alone.name}, services=["Controllers"])
    platform.resolves(name, control_plane=alone.name, timeout_seconds=_SECONDS)
    alone.add_namespace("with-controllers")

    platform.patch("ControlPlaneRegistration", name, {"spec": {"services": []}})
    deployment = alone.wait_unattended("switched-off")

    platform.patch("ControlPlaneRegistration", name, {"spec": {"services": ["Controllers"]}})
    alone.wait_pods(deployment)
