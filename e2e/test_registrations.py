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
def test_a_class_registers_its_control_planes(acme: Tenant, session_platform: Platform) -> None:
    """With `defaultServices` in the class, the operator creates and deletes the registration."""
    found = session_platform.get("ControlPlaneRegistration", acme.name)
    owner = session_platform.get("ControlPlane", acme.name)
    assert [each["uid"] for each in found["metadata"]["ownerReferences"]] == [owner["metadata"]["uid"]]
    status = session_platform.resolves(acme.name)
    assert status["services"] == ["Controllers"]
    assert status["resolvedEndpoint"] == owner["status"]["endpoint"]
    assert status["resolvedKubeconfigSecretRef"] == owner["status"]["kubeconfigSecretRef"]
    assert status["controllers"]["profile"] == "Nodeless"
    acme.wait_account("default")


def test_a_registration_may_come_before_its_control_plane(platform: Platform, unregistered: str) -> None:
    """Manifests can be applied in any order: the status names a missing object, and the operator waits for it."""
    name = platform.name("early")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    assert name in platform.becomes("ControlPlaneRegistration", name, "ControlPlaneNotFound")
    platform.create("ControlPlane", name, classRef={"name": unregistered})
    platform.becomes_ready("ControlPlane", name)
    platform.resolves(name, timeout_seconds=_SECONDS)
    platform.tenant(name).wait_account("default")


def test_a_registration_by_hand_starts_the_controllers(platform: Platform, alone: Tenant) -> None:
    """A Deployment gets Pods after the registration, and not before. Without it the controllers end."""
    alone.unattended("before")
    name = platform.name("by-hand")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": alone.name}, services=["controllers"])
    begun = time.monotonic()
    platform.resolves(name, control_plane=alone.name, timeout_seconds=_SECONDS)
    alone.wait_pods("before")
    assert time.monotonic() - begun < 120

    platform.delete("ControlPlaneRegistration", name)
    alone.wait_unattended("after")


def test_services_are_switched_on_and_off(platform: Platform, alone: Tenant) -> None:
    """An edit of `spec.services` ends the controllers, and starts them again."""
    name = platform.name("switched")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": alone.name}, services=["Controllers"])
    platform.resolves(name, control_plane=alone.name, timeout_seconds=_SECONDS)
    alone.add_namespace("with-controllers")

    platform.patch("ControlPlaneRegistration", name, {"spec": {"services": []}})
    waiting = alone.wait_unattended("switched-off")

    platform.patch("ControlPlaneRegistration", name, {"spec": {"services": ["Controllers"]}})
    alone.wait_pods(waiting)
