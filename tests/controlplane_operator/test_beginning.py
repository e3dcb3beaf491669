"""State of a control plane whose first reconcile ended before its status was written."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlane, find_condition
from kplane.api.conditions import MANAGED
from kplane.api.names import (
    ADOPT_ANNOTATION,
    CLAIMED_ADDRESS_ANNOTATION,
    CLUSTER_PATH_ANNOTATION,
    CONTROL_PLANE_LABEL,
    UID_ANNOTATION,
)
from kplane.controlplane_operator.controlplanes.beginning import needs_record, with_beginning

_ADDRESS = "https://acme:6443"
_SOURCE = {"snapshotRef": {"name": "ashes"}, "identitySecretRef": {"name": "identity"}}
_KEPT = {"type": "Paused", "status": "True", "reason": "x", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}


def control_plane(
    *, annotations: dict[str, str] | None = None, status: dict[str, Any] | None = None, **spec: Any
) -> ControlPlane:
    metadata = {"name": "acme", "uid": "1", "annotations": annotations or {}}
    return ControlPlane.model_validate({"metadata": metadata, "spec": spec, "status": status or {}})


def namespace(uid: str = "1", *, adopted: bool = False) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "kplane-cp-acme", "labels": {CONTROL_PLANE_LABEL: "acme"}}
    if adopted:
        metadata["ownerReferences"] = [{"kind": "ControlPlane", "name": "acme", "uid": uid}]
        metadata["annotations"] = {CLAIMED_ADDRESS_ANNOTATION: _ADDRESS}
    else:
        metadata["annotations"] = {UID_ANNOTATION: uid, CLUSTER_PATH_ANNOTATION: "acme-path"}
    return {"metadata": metadata}


def test_new_control_plane_needs_no_record() -> None:
    assert not needs_record(control_plane(), namespace=None)


@pytest.mark.parametrize(
    ("found", "known"),
    [
        (control_plane(), namespace()),
        (control_plane(status={"deletionPolicy": "Retain"}), None),
        (control_plane(status={"conditions": [_KEPT]}), None),
        (control_plane(annotations={ADOPT_ANNOTATION: "token"}), None),
        (control_plane(mode="Dedicated", source=_SOURCE), None),
    ],
    ids=["begun", "recorded", "known", "adopts data", "restored"],
)
def test_begun_adopting_or_restored_control_plane_needs_record(
    found: ControlPlane, known: dict[str, Any] | None
) -> None:
    assert needs_record(found, namespace=known)


@pytest.mark.parametrize("adopted", [False, True])
def test_with_beginning_restores_path_or_address_from_namespace(*, adopted: bool) -> None:
    edited = control_plane(virtual={"clusterPath": "edited"})
    status = with_beginning(edited, namespace=namespace(adopted=adopted)).status
    managed = find_condition(status.conditions, MANAGED)
    assert managed is not None
    assert (status.cluster_path, status.claimed_address, managed.status) == (
        (None, _ADDRESS, "False") if adopted else ("acme-path", None, "True")
    )


@pytest.mark.parametrize("known", [None, namespace("2"), namespace("2", adopted=True), {"metadata": {"name": "x"}}])
def test_with_beginning_ignores_missing_or_foreign_namespace(known: dict[str, Any] | None) -> None:
    assert with_beginning(control_plane(), namespace=known) == control_plane()


def test_with_beginning_keeps_recorded_status() -> None:
    recorded = control_plane(status={"deletionPolicy": "Retain", "clusterPath": "acme"})
    assert with_beginning(recorded, namespace=namespace()) == recorded
