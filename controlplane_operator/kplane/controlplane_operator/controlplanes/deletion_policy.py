"""What deletion means for a control plane: Retain or Destroy."""

from __future__ import annotations

from kplane.api import DELETING, ControlPlane, ControlPlaneClass, DeletionPolicy, find_condition

__all__ = ["is_decided", "is_unclear", "policy_of"]


def policy_of(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy:
    """Decide by the spec, else by the class in force, else by what was decided before.

    What a removal began with holds, whatever becomes of the class; only the spec counts until the end. What is unclear
    is Retain: data that are kept can be destroyed later, and not the other way round.
    """
    if control_plane.spec.deletion_policy is not None:
        return control_plane.spec.deletion_policy
    in_force = control_plane.status.deletion_policy
    if is_decided(control_plane) and in_force is not None:
        return in_force
    if is_unclear(control_plane, chosen=chosen):
        return DeletionPolicy.RETAIN
    return _by_class(control_plane, chosen=chosen) or in_force or DeletionPolicy.RETAIN


def is_decided(control_plane: ControlPlane) -> bool:
    """Tell whether the removal has begun: by its condition, because the phase is Terminating in a pause as well."""
    return control_plane.deleting and find_condition(control_plane.status.conditions, DELETING) is not None


def is_unclear(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> bool:
    """Tell whether a removal that begins finds the class say something else than `status.deletionPolicy`.

    It cannot know then which was first, the edit of the class or the deletion: the operator was away, or saw both at
    once.
    """
    in_force = control_plane.status.deletion_policy
    if not control_plane.deleting or is_decided(control_plane) or in_force is None:
        return False
    by_class = _by_class(control_plane, chosen=chosen)
    return control_plane.spec.deletion_policy is None and by_class is not None and by_class is not in_force


def _by_class(control_plane: ControlPlane, *, chosen: ControlPlaneClass | None) -> DeletionPolicy | None:
    """Return what the class says, or the default; None where the class that is named is not known."""
    if chosen is not None:
        return chosen.spec.deletion_policy or DeletionPolicy.RETAIN
    return DeletionPolicy.RETAIN if control_plane.spec.class_ref is None else None
