"""Event predicates: reconcilers of optional features are enqueued only for objects that use the feature."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api.names import FINALIZER
from kplane.controlplane_operator.watch.stores import Stores

from .watched import Watched

_SCHEDULE = {"snapshots": {"schedule": "0 3 * * *"}}


def obj(name: str, version: int, *, namespace: str = "", **body: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": metadata | ({"namespace": namespace} if namespace else {}), "spec": {}, **body}


class World:
    """A control plane of a class, and the controllers that its changes reach."""

    def __init__(self, spec: dict[str, Any] | None) -> None:
        self.stores = Stores()
        if spec is not None:
            self.stores.classes.apply(obj("gold", 1, spec=spec))
        self.version = 10
        self.watched = Watched(self.stores)

    def change(self, **status: Any) -> None:
        self.version += 1
        control_plane = obj("cp", self.version, spec={"classRef": {"name": "gold"}}, status=status)
        self.stores.control_planes.apply(control_plane)

    def woken(self) -> set[str]:
        """Return the controllers of optional features with work."""
        return self.watched.woken().keys() & {"controlplaneaddons", "snapshotschedule", "dedicatedmcm"}

    def registrations(self) -> int:
        """Return the number of registrations to reconcile without a delay."""
        return len(self.watched.names("controlplaneregistration"))


def test_class_without_features_enqueues_no_feature_reconciler() -> None:
    world = World({})
    world.change()
    world.change(endpoint="https://cp.example")
    world.stores.secrets.apply(obj("any", 90, namespace="kplane-cp-cp"))
    assert world.woken() == set()


@pytest.mark.parametrize(
    ("spec", "wakes"),
    [({"addons": ["quota"]}, "controlplaneaddons"), (_SCHEDULE, "snapshotschedule")],
)
def test_each_change_enqueues_the_feature_of_the_class(spec: dict[str, Any], wakes: str) -> None:
    world = World(spec)
    for endpoint in ("https://cp.example", "https://moved.example"):
        world.change(endpoint=endpoint)
        assert world.woken() == {wakes}


def test_unknown_class_enqueues_addons_and_snapshots() -> None:
    world = World(None)
    world.change(endpoint="https://cp.example")
    assert world.woken() == {"controlplaneaddons", "snapshotschedule"}


def test_remembered_class_enqueues_its_features() -> None:
    world = World({})
    world.change(rememberedClass={"name": "gold", "spec": {"addons": ["quota"], **_SCHEDULE}})
    assert world.woken() == {"controlplaneaddons", "snapshotschedule"}


def test_new_features_of_class_enqueue_its_control_planes() -> None:
    world = World({})
    world.change()
    world.stores.classes.apply(obj("gold", 20, spec={"addons": ["quota"], **_SCHEDULE}))
    assert world.woken() == {"controlplaneaddons", "snapshotschedule"}


def test_installed_addons_enqueue_addons_after_class_dropped_them() -> None:
    world = World({})
    installed = {"conditions": [{"type": "AddonsReady", "status": "True"}]}
    world.change(endpoint="https://cp.example", **installed)
    assert world.woken() == {"controlplaneaddons"}
    world.stores.secrets.apply(obj("kubeconfig", 90, namespace="kplane-cp-cp"))
    assert world.woken() == {"controlplaneaddons"}
    world.stores.control_planes.remove(obj("cp", 99))
    assert "controlplaneaddons" in world.woken()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"spec": {"mode": "Dedicated"}}),
        ({"spec": {"mode": "Dedicated"}}, {"spec": {"mode": "Shared"}}),
        ({}, {"status": {"mode": "Dedicated"}}),
        ({"status": {"instance": {"mode": "Dedicated"}}}, {"status": {}}),
        ({"status": {"conditions": [{"type": "DedicatedReady", "status": "False"}]}}, {"status": {}}),
    ],
)
def test_mcm_is_enqueued_for_registration_with_dedicated_mcm(before: dict[str, Any], after: dict[str, Any]) -> None:
    world = World({})
    world.stores.registrations.apply(obj("reg", 1, **before))
    assert world.woken() == {"dedicatedmcm"}, "an operator before this one may have left something"
    world.stores.registrations.apply(obj("reg", 2, **after))
    assert world.woken() == {"dedicatedmcm"}
    world.stores.registrations.remove(obj("reg", 3))
    assert world.woken() == {"dedicatedmcm"}


def test_mcm_is_not_enqueued_for_shared_registration() -> None:
    world = World({})
    spec = {"controlPlaneRef": {"name": "cp"}, "mode": "Shared"}
    world.stores.registrations.apply(obj("reg", 1, spec=spec))
    world.woken()
    world.stores.registrations.apply(obj("reg", 2, spec=spec, status={"ready": True, "mode": "Shared"}))
    world.change(endpoint="https://cp.example")
    world.stores.classes.apply(obj("gold", 3, spec={"controllers": {"profile": "Core"}}))
    assert "dedicatedmcm" not in world.woken()


def test_mcm_is_enqueued_by_control_plane_and_class() -> None:
    world = World({})
    world.stores.registrations.apply(obj("reg", 1, spec={"controlPlaneRef": {"name": "cp"}, "mode": "Dedicated"}))
    world.woken()
    world.change(endpoint="https://cp.example")
    assert world.woken() == {"dedicatedmcm"}
    world.stores.classes.apply(obj("gold", 3, spec={"controllers": {"profile": "Core"}}))
    assert "dedicatedmcm" in world.woken()


def test_registrations_are_delayed_until_control_plane_is_published() -> None:
    world = World({})
    world.stores.registrations.apply(obj("reg", 1, spec={"controlPlaneRef": {"name": "cp"}}))
    world.watched.woken()
    world.change()
    world.change(phase="Provisioning", deletionPolicy="Retain")
    assert world.watched.delayed["controlplaneregistration"] == {"reg"}
    assert world.registrations() == 0
    published = {"endpoint": "https://cp.example", "kubeconfigSecretRef": {"name": "kubeconfig"}}
    world.change(**published)
    assert world.registrations() == 1
    world.change(**published, conditions=[{"type": "Ready", "status": "True"}])
    assert world.registrations() == 0
    world.change(**published, version="v1.36.3")
    assert world.registrations() == 1
    # The endpoint that the registrations had resolved to is gone.
    world.change()
    assert world.registrations() == 1


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ([], [FINALIZER], 0),
        (["theirs"], ["theirs", FINALIZER], 0),
        ([FINALIZER], [], 1),
    ],
)
def test_added_finalizer_does_not_enqueue_registration(before: list[str], after: list[str], count: int) -> None:
    world = World({})
    for version, finalizers in ((1, before), (2, after)):
        world.watched.woken()
        registration = obj("reg", version, spec={"controlPlaneRef": {"name": "cp"}})
        registration["metadata"]["finalizers"] = finalizers
        world.stores.registrations.apply(registration)
    assert world.registrations() == count
