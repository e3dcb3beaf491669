"""Obstacles to a requested sleep of a control plane, from its annotations and conditions."""

from __future__ import annotations

from typing import Final

from kplane.api import ControlPlane, RotationPhase, find_condition
from kplane.api.clocks import read_time
from kplane.api.conditions import HIBERNATED, SUPPORTED
from kplane.api.names import PAUSED_ANNOTATION, SLEEP_REQUESTED_ANNOTATION, WAKE_REQUESTED_ANNOTATION

__all__ = ["answer", "obstacle"]

_KEPT_AWAKE: Final = frozenset({"KeptAwake", "NamespaceStuck"})
"""Reasons of condition Hibernated. The list of all reasons is `kplane.api.reasons`."""


def obstacle(control_plane: ControlPlane) -> str | None:
    """Return the obstacle to a requested sleep, with a remedy; None if no obstacle is known."""
    return _prevention(control_plane) or answer(control_plane)


def _prevention(control_plane: ControlPlane) -> str | None:
    """Return an obstacle in the object itself, whether or not the operator has seen the request."""
    rotation, migration = control_plane.status.rotation, control_plane.status.migration
    if control_plane.deleting:
        return "it is being deleted"
    if rotation is not None and rotation.phase is not RotationPhase.DONE:
        return "its keys are rotated; it can sleep after that"
    if migration is not None and migration.step is not None and not migration.step.is_cut:
        return "its data move; it can sleep after that"
    if control_plane.metadata.annotations.get(PAUSED_ANNOTATION) == "true":
        return f"it is paused; resume it: kplane resume {control_plane.name}"
    if _woken_since(control_plane):
        return "a client asked for it after the request to sleep; end the clients that use it, or watch it, first"
    return None


def answer(control_plane: ControlPlane) -> str | None:
    """Return the obstacle that the operator reports in the conditions; None if there is none.

    The conditions may be the response to an earlier request.
    """
    hibernated = find_condition(control_plane.status.conditions, HIBERNATED)
    if hibernated is not None and hibernated.status == "False" and hibernated.reason in _KEPT_AWAKE:
        return f"{hibernated.message}; it sleeps once that has ended, unless a client asks for it before"
    supported = find_condition(control_plane.status.conditions, SUPPORTED)
    if supported is not None and supported.status == "False" and SLEEP_REQUESTED_ANNOTATION in supported.message:
        return supported.message
    return None


def _woken_since(control_plane: ControlPlane) -> bool:
    """Return whether a client or a person requested a wake after the last sleep request."""
    annotations = control_plane.metadata.annotations
    sleep_time = read_time(annotations.get(SLEEP_REQUESTED_ANNOTATION))
    wake_time = read_time(annotations.get(WAKE_REQUESTED_ANNOTATION))
    return sleep_time is not None and wake_time is not None and wake_time >= sleep_time
