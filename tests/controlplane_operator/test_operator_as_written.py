"""Control planes that fail validation: only their recorded data are removed."""

from __future__ import annotations

from typing import Any

import pytest

from kplane.api import ControlPlaneMode, DeletionPolicy
from kplane.controlplane_operator.class_policy import policy_of
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialRegistration, as_recorded, validated_endpoint

ODD = {"endpointRef": {"name": "door"}, "version": "1.36.0"}
SINCE = "2026-01-01T00:00:00Z"


def condition(kind: str, status: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": "So", "message": "", "lastTransitionTime": SINCE}


def written(*, spec: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "odd", "uid": "1", "deletionTimestamp": SINCE}, "spec": spec, "status": status}


VIRTUAL = {"clusterPath": "path", "conditions": [condition("Managed", "True")]}


@pytest.mark.parametrize(
    ("spec", "status", "expected"),
    [
        (ODD, VIRTUAL | {"deletionPolicy": "Destroy"}, (ControlPlaneMode.VIRTUAL, DeletionPolicy.DESTROY, None)),
        # An edit of an invalid spec can retain the data, but cannot destroy them.
        (
            ODD | {"deletionPolicy": "Destroy"},
            VIRTUAL | {"deletionPolicy": "Retain"},
            (ControlPlaneMode.VIRTUAL, DeletionPolicy.RETAIN, None),
        ),
        (
            ODD | {"deletionPolicy": "Retain"},
            VIRTUAL | {"deletionPolicy": "Destroy"},
            (ControlPlaneMode.VIRTUAL, DeletionPolicy.RETAIN, None),
        ),
        (
            ODD,
            {"conditions": [condition("Managed", "False")], "deletionPolicy": "Destroy"},
            (ControlPlaneMode.DEDICATED, DeletionPolicy.DESTROY, "door"),
        ),
        # If a part of the record is invalid, the data stay.
        (
            ODD,
            VIRTUAL | {"deletionPolicy": "Destroy", "phase": "Unheard-of"},
            (ControlPlaneMode.VIRTUAL, DeletionPolicy.RETAIN, None),
        ),
        ({"mode": "Sideways"}, {}, (ControlPlaneMode.DEDICATED, DeletionPolicy.RETAIN, None)),
    ],
)
def test_as_recorded_replaces_invalid_spec_by_status(
    spec: dict[str, Any], status: dict[str, Any], expected: tuple[ControlPlaneMode, DeletionPolicy, str | None]
) -> None:
    recorded = as_recorded(written(spec=spec, status=status))
    reference = recorded.spec.endpoint_ref
    policy = policy_of(recorded, chosen=None)
    assert (recorded.spec.mode, policy, reference.name if reference is not None else None) == expected
    assert recorded.status.cluster_path == status.get("clusterPath")
    assert (recorded.status.deletion_policy is not None) == ("deletionPolicy" in status)


def test_as_recorded_keeps_valid_spec() -> None:
    recorded = as_recorded(written(spec={"deletionPolicy": "Retain"}, status=VIRTUAL | {"deletionPolicy": "Destroy"}))
    assert policy_of(recorded, chosen=None) is DeletionPolicy.RETAIN


def test_partial_status_drops_only_invalid_fields() -> None:
    conditions = [condition("Ready", "Perhaps"), condition("Managed", "True"), condition("Paused", "Never")]
    status = {"ready": True, "mode": "Unheard-of", "controlPlaneUID": "7", "conditions": conditions}
    registration = PartialRegistration.of({"metadata": {"name": "odd"}, "spec": {"x": 1}, "status": status})
    assert (registration.status.ready, registration.status.control_plane_uid, registration.status.mode) == (
        True,
        "7",
        None,
    )
    assert [entry.type for entry in registration.conditions] == ["Managed"]


def test_validated_endpoint_raises_endpoint_invalid() -> None:
    with pytest.raises(ConditionError, match=r"ControlPlaneEndpoint odd: .*spec\.endpoint: ") as refused:
        validated_endpoint({"metadata": {"name": "odd"}, "spec": {"endpoint": 7}})
    assert (refused.value.reason, refused.value.waits_for_event) == ("EndpointInvalid", True)
