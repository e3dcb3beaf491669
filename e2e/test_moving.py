"""Moves a tenant's controllers from a virtual to a dedicated control plane by its registration."""

from __future__ import annotations

import pytest

from e2e.platform import Platform
from e2e.tenant import Tenant


@pytest.fixture
def pair(platform: Platform, unregistered: str) -> tuple[Tenant, Tenant]:
    """A virtual control plane and a dedicated one."""
    names = {mode: platform.name(mode.lower()) for mode in ("Virtual", "Dedicated")}
    for mode, name in names.items():
        platform.create("ControlPlane", name, classRef={"name": unregistered}, mode=mode)
    for name in names.values():
        platform.becomes_ready("ControlPlane", name)
    return platform.tenant(names["Virtual"]), platform.tenant(names["Dedicated"])


@pytest.mark.smoke(
    "dedicated (with its own etcd)",
    "moves the controllers: they end at the old one before they start at the new one",
)
def test_the_controllers_follow_the_registration(platform: Platform, pair: tuple[Tenant, Tenant]) -> None:
    """One edit of `spec.controlPlaneRef` ends the controllers at the old control plane, then starts them at the new."""
    virtual, dedicated = pair
    name = platform.name("moved")
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": virtual.name}, services=["Controllers"])
    before = platform.resolves(name, control_plane=virtual.name)
    virtual.deploy("web")
    virtual.wait_pods("web")
    dedicated.unattended("web")

    platform.patch("ControlPlaneRegistration", name, {"spec": {"controlPlaneRef": {"name": dedicated.name}}})
    after = platform.resolves(name, control_plane=dedicated.name)
    assert after["resolvedEndpoint"] != before["resolvedEndpoint"]
    dedicated.wait_pods("web")
    # They never run at both.
    virtual.unattended("after-the-move")
    # Both control planes still serve their data.
    assert len(virtual.pods("web")) == len(dedicated.pods("web")) == 2


def test_the_mode_is_not_switched_in_place(acme: Tenant, session_platform: Platform) -> None:
    """An edit of `spec.mode` would lose the data, so it is refused with the alternative."""
    patch = ("patch", "controlplane", acme.name, "--type=merge", '--patch={"spec":{"mode":"Dedicated"}}')
    said = session_platform.kubectl.refuses(*patch)
    assert "create a second ControlPlane of the other mode" in said
    session_platform.becomes_ready("ControlPlane", acme.name)
