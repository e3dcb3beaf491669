"""What can be waited for, each as a question to one control plane."""

from __future__ import annotations

from collections.abc import Callable

from kplane.api import READY, ControlPlane, ControlPlaneMode, ControlPlanePhase, Home, is_true

__all__ = ["Settled", "arrived", "asleep", "awake", "moved", "ready"]

Settled = Callable[[ControlPlane], bool]
"""Whether a control plane is where it was waited for."""


def ready(control_plane: ControlPlane) -> bool:
    """Whether it is published and can be used; one that sleeps is woken by its first request."""
    status = control_plane.status
    return status.observed_generation == control_plane.metadata.generation and is_true(status.conditions, READY)


def awake(control_plane: ControlPlane) -> bool:
    """Whether its API server runs."""
    return control_plane.status.phase is ControlPlanePhase.READY and ready(control_plane)


def asleep(control_plane: ControlPlane) -> bool:
    """Whether it sleeps."""
    return control_plane.status.phase is ControlPlanePhase.HIBERNATED


def moved(mode: ControlPlaneMode) -> Settled:
    """Whether its data live in a home of this mode, and it can be used there."""

    def settled(control_plane: ControlPlane) -> bool:
        return control_plane.home.mode is mode and ready(control_plane)

    return settled


def arrived(home: Home) -> Settled:
    """Whether its data live in this home and go to no other one, and it can be used there."""

    def settled(control_plane: ControlPlane) -> bool:
        moving = control_plane.status.migration
        is_still = moving is None or (moving.step is not None and moving.step.is_cut)
        return control_plane.home.is_like(home) and is_still and ready(control_plane)

    return settled
