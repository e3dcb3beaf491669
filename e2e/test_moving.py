"""Moves a tenant's controllers from a virtual to a dedicated control plane by its registration."""

from __future__ import annotations

import pytest

from e2e.platform import Platform, condition
from e2e.tenant import Tenant
from e2e.waiting import eventually


@pytest.fixture
def pair(platform: Platform, unregistered: str) -> tuple[Tenant, Tenant]:
    """A virtual and a dedicated control plane."""
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
def test_controllers_follow_change_of_control_plane_ref(platform: Platform, pair: tuple[Tenant, Tenant]) -> None:
    """The controllers end at the old control plane, and start at the new control plane."""
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
    # The controllers no longer run at the old control plane.
    virtual.unattended("after-the-move")
    # Both control planes still serve their data.
    assert len(virtual.pods("web")) == len(dedicated.pods("web")) == 2


def test_mode_change_without_gateway_is_blocked(acme: Tenant, session_platform: Platform) -> None:
    """Without a gateway, no program can hold requests during a move. Condition Migrating has the reason."""
    platform = session_platform

    def migrating(mode: str, reason: str) -> str:
        platform.patch("ControlPlane", acme.name, {"spec": {"mode": mode}})
        migrating_condition = eventually(
            f"{acme.name} {reason}",
            lambda: condition(platform.find("ControlPlane", acme.name), "Migrating"),
            lambda found: found.get("reason") == reason,
        )
        return str(migrating_condition["message"])

    assert "has no gateway" in migrating("Dedicated", "MigrationBlocked")
    assert platform.becomes_ready("ControlPlane", acme.name)["home"]["mode"] == "Virtual"
    migrating("Virtual", "MigrationAborted")
    platform.becomes_ready("ControlPlane", acme.name)
