"""A control plane behind kplane's gateway moves to a dedicated home and back while clients use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest

from e2e.kubectl import Object
from e2e.platform import Platform
from e2e.tenant import Tenant
from e2e.waiting import eventually
from e2e.writer import writing

_SECONDS: Final = 240.0
"""Time limit of a move, on a busy machine."""


@pytest.fixture(scope="module")
def platform(gateway_platform: Platform) -> Platform:
    """The platform behind the gateway."""
    return gateway_platform


@pytest.fixture
def mover(platform: Platform) -> Tenant:
    """A virtual control plane with controllers, and a Deployment of one Pod."""
    name = platform.name("mover")
    # A rollback window of an hour does not end before the move back.
    platform.create("ControlPlane", name, deletionPolicy="Destroy", migration={"plan": True, "rollbackWindow": "1h"})
    platform.create("ControlPlaneRegistration", name, controlPlaneRef={"name": name}, services=["Controllers"])
    platform.becomes_ready("ControlPlane", name)
    tenant = platform.tenant(name)
    tenant.deploy("web", replicas=1)
    tenant.wait_pods("web", replicas=1)
    return tenant


def _wait_migration(platform: Platform, name: str, what: str, accept: Callable[[Object], Any]) -> Object:
    """Wait until `status.migration` is accepted, and return the status."""
    status: Object = eventually(
        f"{name} {what}",
        lambda: platform.get("ControlPlane", name)["status"],
        lambda found: accept(found.get("migration") or {}),
        timeout_seconds=_SECONDS,
    )
    return status


def _move(platform: Platform, tenant: Tenant, *, to: str, replicas: int) -> Object:
    """Move the data, scale the Deployment meanwhile, and return the status after the move."""
    platform.patch("ControlPlane", tenant.name, {"spec": {"mode": to, "migration": {"plan": False}}})
    _wait_migration(
        platform, tenant.name, f"on its way to {to}", lambda found: "step" in found and found["to"]["mode"] == to
    )
    tenant.kubectl("scale", "deployment", "web", "-n", "default", f"--replicas={replicas}")
    moved = _wait_migration(
        platform, tenant.name, f"in its home {to}", lambda found: found["to"]["mode"] == to and "sha256" in found
    )
    assert moved["home"]["mode"] == to
    tenant.wait_pods("web", replicas=replicas)
    (replica_set,) = tenant.kubectl.items("replicasets", "-n", "default")
    assert replica_set["spec"]["replicas"] == replicas
    return moved


def test_control_plane_moves_and_returns_without_client_errors(platform: Platform, mover: Tenant) -> None:
    """The kubeconfig is valid before, during and after both moves. A writer that never retries gets no error."""
    platform.patch("ControlPlane", mover.name, {"spec": {"mode": "Dedicated"}})
    plan_status = _wait_migration(platform, mover.name, "with a plan", lambda found: "plan" in found)
    assert plan_status["migration"]["plan"].get("blockers", []) == []
    assert plan_status["home"]["mode"] == "Virtual"

    with writing(mover) as written:
        dedicated_status = _move(platform, mover, to="Dedicated", replicas=3)
        virtual_status = _move(platform, mover, to="Virtual", replicas=2)
    assert set(written) <= mover.kubectl.names("configmaps", "-n", "default")
    assert dedicated_status["migration"]["step"] == virtual_status["migration"]["step"] == "Retaining"
    assert virtual_status["migration"]["returns"]


def test_dedicated_control_plane_moves_to_larger_volume(platform: Platform) -> None:
    """An etcd with the data starts on a larger volume, and the former volume is deleted."""
    name = platform.name("grower")
    platform.create("ControlPlane", name, mode="Dedicated", endpointPolicy="Gateway", deletionPolicy="Destroy")
    platform.becomes_ready("ControlPlane", name)
    tenant = platform.tenant(name)
    with writing(tenant) as written:
        spec = {"dedicated": {"volume": {"size": "2Gi"}}, "migration": {"rollbackWindow": "0s"}}
        platform.patch("ControlPlane", name, {"spec": spec})
        moved = _wait_migration(platform, name, "on its new volume", lambda found: found.get("step") == "Completed")
    assert moved["home"]["volume"] == {"size": "2Gi"}
    assert set(written) <= tenant.kubectl.names("configmaps", "-n", "default")
    # An etcd that runs as a process has no PersistentVolumeClaims.
    sizes: set[str] = eventually(
        f"volumes of {name}",
        lambda: {
            claim["spec"]["resources"]["requests"]["storage"]
            for claim in platform.kubectl.items("persistentvolumeclaims", "-n", f"kplane-cp-{name}")
        },
        lambda found: found <= {"2Gi"},
    )
    assert len(sizes) <= 1
