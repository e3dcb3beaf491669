"""Who works on a control plane: the registrations that are ready for it, and the instances that run for it."""

from __future__ import annotations

from api import ControlPlane
from controlplane_operator.as_written import RegistrationAsWritten
from controlplane_operator.fanout import Stores

__all__ = ["instances_of", "registrations_of"]


def registrations_of(control_plane: ControlPlane, *, stores: Stores) -> list[str]:
    """Name the registrations whose status still lets services run for the control plane, whatever their spec says."""
    return [found.name for found in _of(control_plane, stores) if found.status.ready and _serves(found, control_plane)]


def instances_of(control_plane: ControlPlane, *, stores: Stores) -> list[str]:
    """Name the registrations whose instance works for the control plane, or may: its end is not confirmed yet.

    mcm announces an instance before it starts, and takes that back when nothing is left of it. So after a registration
    was seen to be not ready and without an instance, in one look at it, none comes any more.
    """
    return [
        found.name
        for found in _of(control_plane, stores)
        if found.status.instance is not None and found.status.instance.control_plane_uid == control_plane.metadata.uid
    ]


def _of(control_plane: ControlPlane, stores: Stores) -> list[RegistrationAsWritten]:
    found = stores.registrations.by("served", control_plane.metadata.uid or "")
    return [RegistrationAsWritten.of(obj) for obj in found]


def _serves(registration: RegistrationAsWritten, control_plane: ControlPlane) -> bool:
    return registration.status.control_plane_uid == control_plane.metadata.uid
