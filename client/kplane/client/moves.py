"""The change of a spec that asks for a home of a control plane's data.

The API server refuses settings of the other mode. A move to another mode sets them aside in an annotation, and the move
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
    """Return the home that a move goes back to: the former one after the cut, the present one before it."""
    moving = control_plane.status.migration
    is_cut = moving is not None and moving.step is not None and moving.step.is_cut
    return moving.source if moving is not None and is_cut else control_plane.home


def home_of_mode(control_plane: ControlPlane, mode: ControlPlaneMode) -> Home | None:
    """Return the present or the former home of a mode; None if the data were in no such home."""
    return next((each for each in (control_plane.home, former_home(control_plane)) if each.mode is mode), None)


def patch_for(control_plane: ControlPlane, *, mode: ControlPlaneMode, home: Home | None, plan: bool) -> dict[str, Any]:
    """Return the merge patch that asks for a mode, with the settings of `home` if there is one.

    `plan` only asks what the move would take.
    """
    former_mode = control_plane.spec.mode
    spec: dict[str, Any] = {"mode": str(mode), "migration": {"plan": plan}}
    patch: dict[str, Any] = {"spec": spec}
    held = _section(control_plane, former_mode)
    wanted = _with_home(control_plane, held if mode is former_mode else _set_aside(control_plane, mode), home, mode)
    if mode is former_mode:
        spec[mode.lower()] = _replacing(held, wanted)
        return patch
    if wanted:
        spec[mode.lower()] = wanted
    spec[former_mode.lower()] = None
    aside = json.dumps({str(former_mode): held}) if held else None
    patch["metadata"] = {"annotations": {FORMER_SETTINGS_ANNOTATION: aside}}
    return patch


def _with_home(
    control_plane: ControlPlane, settings: Mapping[str, Any], home: Home | None, mode: ControlPlaneMode
) -> dict[str, Any]:
    """Return the settings of a mode that ask for this home."""
    wanted = dict(settings)
    if mode is ControlPlaneMode.VIRTUAL and control_plane.status.cluster_path not in {None, control_plane.name}:
        wanted["clusterPath"] = control_plane.status.cluster_path
    if home is None:
        return wanted
    if mode is ControlPlaneMode.DEDICATED:
        volume = home.volume.model_dump(mode="json", by_alias=True, exclude_none=True) if home.volume else None
        wanted["volume"] = volume
        return {name: value for name, value in wanted.items() if value is not None}
    asked = wanted.get("dataStoreRef") or _by_class(control_plane) or {}
    store = home.data_store or DEFAULT_DATA_STORE
    return wanted if asked.get("name", DEFAULT_DATA_STORE) == store else {**wanted, "dataStoreRef": {"name": store}}


def _section(control_plane: ControlPlane, mode: ControlPlaneMode) -> dict[str, Any]:
    """Return `spec.virtual` or `spec.dedicated` as the object has it."""
    section = control_plane.spec.virtual if mode is ControlPlaneMode.VIRTUAL else control_plane.spec.dedicated
    return section.model_dump(mode="json", by_alias=True, exclude_unset=True) if section is not None else {}


def _set_aside(control_plane: ControlPlane, mode: ControlPlaneMode) -> dict[str, Any]:
    """Return the settings of a mode that an earlier move set aside; empty if there are none."""
    try:
        aside = json.loads((control_plane.metadata.annotations or {})[FORMER_SETTINGS_ANNOTATION])
        return dict(aside[str(mode)])
    except (KeyError, TypeError, ValueError):
        return {}


def _by_class(control_plane: ControlPlane) -> Mapping[str, Any] | None:
    """Return the data store that the class chooses, as the operator saw the class last."""
    remembered = control_plane.status.remembered_class
    virtual = remembered.spec.get("virtual") if remembered is not None else None
    store: Mapping[str, Any] | None = virtual.get("dataStoreRef") if isinstance(virtual, Mapping) else None
    return store


def _replacing(former: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch that leaves `wanted` of `former`: what is not wanted becomes null."""
    patch: dict[str, Any] = {name: None for name in former if name not in wanted}
    for name, value in wanted.items():
        held = former.get(name)
        if isinstance(held, Mapping) and isinstance(value, Mapping):
            patch[name] = _replacing(held, value)
        else:
            patch[name] = value
    return patch
