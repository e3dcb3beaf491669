"""Patches of a spec that request a home for a control plane's data.

The API server refuses settings of the other mode. So a move to another mode saves them in an annotation, and the move
back restores them. The former home itself is in `status.migration.from`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kplane.api import ControlPlane, ControlPlaneMode, Home
from kplane.api.home import DEFAULT_DATA_STORE
from kplane.api.names import FORMER_SETTINGS_ANNOTATION

__all__ = ["former_home", "home_of_mode", "patch_for"]


def former_home(control_plane: ControlPlane) -> Home:
    """Return the home to which a move back leads: the former home after the cut, the current home before."""
    moving = control_plane.status.migration
    is_cut = moving is not None and moving.step is not None and moving.step.is_cut
    return moving.source if moving is not None and is_cut else control_plane.home


def home_of_mode(control_plane: ControlPlane, mode: ControlPlaneMode) -> Home | None:
    """Return the current or the former home of a mode; None if no such home is recorded."""
    return next((home for home in (control_plane.home, former_home(control_plane)) if home.mode is mode), None)


def patch_for(control_plane: ControlPlane, *, mode: ControlPlaneMode, home: Home | None, plan: bool) -> dict[str, Any]:
    """Return the merge patch that requests a mode, with the settings of `home` if given.

    With `plan`, the patch only requests an estimate of the move.
    """
    former_mode = control_plane.spec.mode
    spec: dict[str, Any] = {"mode": str(mode), "migration": {"plan": plan}}
    patch: dict[str, Any] = {"spec": spec}
    current = _section(control_plane, former_mode)
    desired = _with_home(control_plane, current if mode is former_mode else _set_aside(control_plane, mode), home, mode)
    if mode is former_mode:
        spec[mode.lower()] = _replacing(current, desired)
        return patch
    if desired:
        spec[mode.lower()] = desired
    spec[former_mode.lower()] = None
    saved = json.dumps({str(former_mode): current}) if current else None
    patch["metadata"] = {"annotations": {FORMER_SETTINGS_ANNOTATION: saved}}
    return patch


def _with_home(
    control_plane: ControlPlane, settings: Mapping[str, Any], home: Home | None, mode: ControlPlaneMode
) -> dict[str, Any]:
    """Return the settings of a mode that request this home."""
    desired = dict(settings)
    if mode is ControlPlaneMode.VIRTUAL and control_plane.status.cluster_path not in {None, control_plane.name}:
        desired["clusterPath"] = control_plane.status.cluster_path
    if home is None:
        return desired
    if mode is ControlPlaneMode.DEDICATED:
        volume = home.volume.model_dump(mode="json", by_alias=True, exclude_none=True) if home.volume else None
        desired["volume"] = volume
        return {name: value for name, value in desired.items() if value is not None}
    reference = desired.get("dataStoreRef") or _by_class(control_plane) or {}
    store = home.data_store or DEFAULT_DATA_STORE
    return (
        desired if reference.get("name", DEFAULT_DATA_STORE) == store else {**desired, "dataStoreRef": {"name": store}}
    )


def _section(control_plane: ControlPlane, mode: ControlPlaneMode) -> dict[str, Any]:
    """Return `spec.virtual` or `spec.dedicated` of the object, without defaults."""
    section = control_plane.spec.virtual if mode is ControlPlaneMode.VIRTUAL else control_plane.spec.dedicated
    return section.model_dump(mode="json", by_alias=True, exclude_unset=True) if section is not None else {}


def _set_aside(control_plane: ControlPlane, mode: ControlPlaneMode) -> dict[str, Any]:
    """Return the settings of a mode that an earlier move saved; empty if there are none."""
    try:
        saved = json.loads((control_plane.metadata.annotations or {})[FORMER_SETTINGS_ANNOTATION])
        return dict(saved[str(mode)])
    except (KeyError, TypeError, ValueError):
        return {}


def _by_class(control_plane: ControlPlane) -> Mapping[str, Any] | None:
    """Return the data store of the class, as the operator saw the class last."""
    class_record = control_plane.status.remembered_class
    virtual = class_record.spec.get("virtual") if class_record is not None else None
    store: Mapping[str, Any] | None = virtual.get("dataStoreRef") if isinstance(virtual, Mapping) else None
    return store


def _replacing(former: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that changes `former` into `wanted`; fields that are missing in `wanted` become null."""
    patch: dict[str, Any] = {name: None for name in former if name not in wanted}
    for name, value in wanted.items():
        current = former.get(name)
        if isinstance(current, Mapping) and isinstance(value, Mapping):
            patch[name] = _replacing(current, value)
        else:
            patch[name] = value
    return patch
