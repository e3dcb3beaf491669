"""What is removed of a control plane that is not understood is what was recorded of it, and never more."""

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
        # An edit that nobody could act on makes nobody's data go, and may well keep them.
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
        # Where a part of what was recorded cannot be read, the data stay.
        (
            ODD,
            VIRTUAL | {"deletionPolicy": "Destroy", "phase": "Unheard-of"},
            (ControlPlaneMode.VIRTUAL, DeletionPolicy.RETAIN, None),
        ),
        ({"mode": "Sideways"}, {}, (ControlPlaneMode.DEDICATED, DeletionPolicy.RETAIN, None)),
    ],
)
def test_the_status_stands_in_for_the_spec(
    spec: dict[str, Any], status: dict[str, Any], expected: tuple[ControlPlaneMode, DeletionPolicy, str | None]
) -> None:
    found = as_recorded(written(spec=spec, status=status))
    reference = found.spec.endpoint_ref
    policy = policy_of(found, chosen=None)
    assert (found.spec.mode, policy, reference.name if reference is not None else None) == expected
    assert found.status.cluster_path == status.get("clusterPath")
    assert (found.status.deletion_policy is not None) == ("deletionPolicy" in status)


def test_what_is_understood_is_as_it_says() -> None:
    found = as_recorded(written(spec={"deletionPolicy": "Retain"}, status=VIRTUAL | {"deletionPolicy": "Destroy"}))
    assert policy_of(found, chosen=None) is DeletionPolicy.RETAIN


def test_of_a_status_only_what_cannot_be_read_is_left_out() -> None:
    conditions = [condition("Ready", "Perhaps"), condition("Managed", "True"), condition("Paused", "Never")]
    status = {"ready": True, "mode": "Unheard-of", "controlPlaneUID": "7", "conditions": conditions}
    found = PartialRegistration.of({"metadata": {"name": "odd"}, "spec": {"x": 1}, "status": status})
    assert (found.status.ready, found.status.control_plane_uid, found.status.mode) == (True, "7", None)
    assert [each.type for each in found.conditions] == ["Managed"]


def test_an_endpoint_that_is_not_understood_is_a_trouble_of_those_who_name_it() -> None:
    with pytest.raises(ConditionError, match=r"ControlPlaneEndpoint odd: .*spec\.endpoint: ") as refused:
        validated_endpoint({"metadata": {"name": "odd"}, "spec": {"endpoint": 7}})
    assert (refused.value.reason, refused.value.waits_for_event) == ("EndpointInvalid", True)
