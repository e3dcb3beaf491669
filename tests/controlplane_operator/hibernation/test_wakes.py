"""Objects that are enqueued when a control plane is used, falls asleep or wakes."""

from __future__ import annotations

from typing import Any

from kplane.api.names import LAST_USED_ANNOTATION, WAKE_REQUESTED_ANNOTATION
from kplane.controlplane_operator.watch.stores import Stores
from tests.controlplane_operator.watched import Watched

AWAKE = {"endpoint": "https://acme"}
INSTALLED = {"conditions": [{"type": "AddonsReady", "status": "True"}]}
SLEEP = {"hibernation": {"since": "2026-11-23T12:00:00Z", "reason": "Idle"}}


def control_plane(version: int, *, status: dict[str, Any] | None = None, **annotations: str) -> dict[str, Any]:
    metadata = {"name": "acme", "uid": "uid-acme", "resourceVersion": str(version), "annotations": annotations}
    return {"metadata": metadata, "spec": {}, "status": status or {}}


def registration(version: int, **status: Any) -> dict[str, Any]:
    metadata = {"name": "r", "uid": "uid-r", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"controlPlaneRef": {"name": "acme"}}, "status": status}


async def test_only_first_use_enqueues_control_plane() -> None:
    """After the first use, a pass knows the time at which the control plane is idle."""
    other = {"example.org/owner": "shop"}
    for annotations_before, count in (({}, 1), ({LAST_USED_ANNOTATION: "2026-11-23T12:00:00Z"}, 0)):
        stores = Stores()
        stores.control_planes.apply(control_plane(1, **other, **annotations_before))
        stores.registrations.apply(registration(1, ready=True, controlPlaneUID="uid-acme"))
        watched = Watched(stores)
        stores.control_planes.apply(control_plane(2, **other, **{LAST_USED_ANNOTATION: "2026-11-23T12:01:00Z"}))
        assert len(watched.names("controlplane")) == count


async def test_wake_request_enqueues_control_plane() -> None:
    stores = Stores()
    stores.control_planes.apply(control_plane(1))
    watched = Watched(stores)
    stores.control_planes.apply(control_plane(2, **{WAKE_REQUESTED_ANNOTATION: "2026-11-23T12:01:00Z"}))
    assert watched.names("controlplane") == {"acme"}


async def test_sleep_or_wake_enqueues_registration_endpoint_and_addons() -> None:
    for before, after in ((AWAKE, AWAKE | SLEEP), (AWAKE | SLEEP, AWAKE), ({}, AWAKE), ({}, AWAKE | SLEEP)):
        stores = Stores()
        stores.control_planes.apply(control_plane(1, status=before | INSTALLED))
        stores.registrations.apply(registration(1, ready=True, controlPlaneUID="uid-acme", mode="Dedicated"))
        watched = Watched(stores)
        stores.control_planes.apply(control_plane(2, status=after | INSTALLED))
        assert watched.woken().keys() >= {
            "controlplane",
            "controlplaneregistration",
            "controlplaneendpoint",
            "controlplaneaddons",
            "dedicatedmcm",
        }


async def test_end_of_instance_enqueues_control_plane_falling_asleep() -> None:
    for status, count in ((SLEEP, 1), ({}, 0)):
        stores = Stores()
        stores.control_planes.apply(control_plane(1, status=status))
        stores.registrations.apply(registration(1, instance={"controlPlaneUID": "uid-acme"}))
        watched = Watched(stores)
        stores.registrations.apply(registration(2))
        assert len(watched.names("controlplane")) == count
