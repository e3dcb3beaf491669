"""Status of a key rotation, and messages about rotation requests that are refused."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from kplane.api import ControlPlane, RotationPhase
from kplane.controlplane_operator.controlplanes.rotator import refused_rotation, rotation_status
from kplane.pki.authorities import TenantAuthorities
from kplane.pki.rotation import Rotation

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)


def control_plane(value: str | None, *, finish: str | None = None, latest: str = "", **spec: Any) -> ControlPlane:
    requested = {"controlplane.kplane.dev/rotate": value, "controlplane.kplane.dev/finish-rotation": finish}
    annotations = {name: text for name, text in requested.items() if text is not None}
    latest_rotation = {"value": latest, "phase": "Done", "startedAt": NOW, "phaseStartedAt": NOW}
    body = {"metadata": {"name": "a", "annotations": annotations}, "spec": spec}
    return ControlPlane.model_validate({**body, "status": {"rotation": latest_rotation} if latest else {}})


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (control_plane(None), ""),
        (control_plane("first"), ""),
        (control_plane("x" * 63), ""),
        (control_plane(""), "1 to 63 characters"),
        (control_plane("x" * 64), "1 to 63 characters"),
        (control_plane("first", endpointRef={"name": "e"}), "where the API server is run"),
        (control_plane(None, endpointRef={"name": "e"}), ""),
        (control_plane("first", finish="first"), ""),
        (control_plane(None, finish="first", latest="first"), ""),
        (control_plane("first", finish="frist"), "no exchange has its value 'frist'"),
        (control_plane(None, finish="first"), "no exchange has its value 'first'"),
    ],
)
def test_refused_rotation_explains_invalid_request(asked: ControlPlane, told: str) -> None:
    sentences = refused_rotation(asked)
    assert len(sentences) == bool(told)
    assert all(told in sentence for sentence in sentences)


def test_rotation_status_has_phase_and_times_or_is_none() -> None:
    authorities = TenantAuthorities.create("a")
    assert rotation_status(None) is None
    assert rotation_status(authorities) is None
    rotation = Rotation("first", RotationPhase.OVERLAPPING, NOW, NOW, drop_at=NOW + dt.timedelta(days=1))
    status = rotation_status(replace(authorities, rotation=rotation))
    assert status is not None
    assert status.model_dump(mode="json", by_alias=True) == {
        "value": "first",
        "phase": "Overlapping",
        "startedAt": "2026-11-21T12:00:00Z",
        "phaseStartedAt": "2026-11-21T12:00:00Z",
        "dropAt": "2026-11-22T12:00:00Z",
    }
