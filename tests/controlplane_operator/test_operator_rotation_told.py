"""What a control plane tells of the exchange of its keys, and of one that is asked for in vain."""

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
    asked = {"controlplane.kplane.dev/rotate": value, "controlplane.kplane.dev/finish-rotation": finish}
    annotations = {name: text for name, text in asked.items() if text is not None}
    known = {"value": latest, "phase": "Done", "startedAt": NOW, "phaseStartedAt": NOW}
    body = {"metadata": {"name": "a", "annotations": annotations}, "spec": spec}
    return ControlPlane.model_validate({**body, "status": {"rotation": known} if latest else {}})


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
def test_what_cannot_be_done_is_refused_with_a_sentence(asked: ControlPlane, told: str) -> None:
    sentences = refused_rotation(asked)
    assert len(sentences) == bool(told)
    assert all(told in sentence for sentence in sentences)


def test_the_status_tells_what_is_kept_and_nothing_where_nothing_is() -> None:
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
