"""Predicates of control planes, for `ControlPlanes.wait`."""

from __future__ import annotations

from collections.abc import Callable

from kplane.api import READY, ControlPlane, ControlPlaneMode, ControlPlanePhase, Home, find_condition, is_true
from kplane.api.reasons import Reason

__all__ = ["Settled", "arrived", "asleep", "awake", "moved", "person_needed", "ready"]

Settled = Callable[[ControlPlane], bool]
"""Predicate of a control plane: True ends the wait."""


def ready(control_plane: ControlPlane) -> bool:
    """Return whether the control plane is published and can be used; a request wakes a sleeping control plane."""
    status = control_plane.status
    return status.observed_generation == control_plane.metadata.generation and is_true(status.conditions, READY)


def awake(control_plane: ControlPlane) -> bool:
    """Return whether the API server runs."""
    return control_plane.status.phase is ControlPlanePhase.READY and ready(control_plane)


def person_needed(control_plane: ControlPlane | None) -> Reason | None:
    """Return the reason why the control plane is not ready, if it needs the action of a person; None otherwise."""
    if control_plane is None or control_plane.status.observed_generation != control_plane.metadata.generation:
        return None
    condition = find_condition(control_plane.status.conditions, READY)
    reason = Reason.of(condition.reason) if condition is not None and condition.status != "True" else None
    return reason if reason is not None and reason.needs_person else None


def asleep(control_plane: ControlPlane) -> bool:
    """Return whether the control plane sleeps."""
    return control_plane.status.phase is ControlPlanePhase.HIBERNATED


def moved(mode: ControlPlaneMode) -> Settled:
    """Return the predicate that the data are in a home of this mode and the control plane can be used."""

    def settled(control_plane: ControlPlane) -> bool:
        return control_plane.home.mode is mode and ready(control_plane)

    return settled


def arrived(home: Home) -> Settled:
    """Return the predicate that the data are and stay in this home, and that the control plane can be used."""

    def settled(control_plane: ControlPlane) -> bool:
        moving = control_plane.status.migration
        is_still = moving is None or (moving.step is not None and moving.step.is_cut)
        return control_plane.home.is_like(home) and is_still and ready(control_plane)

    return settled
