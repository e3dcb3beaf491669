"""Which registrations use a control plane, and which instances work for it: both end before its API server does."""

from __future__ import annotations

from kplane.api import ControlPlane
from kplane.controlplane_operator.status.partial import PartialRegistration
from kplane.controlplane_operator.watch.stores import Stores

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


def _of(control_plane: ControlPlane, stores: Stores) -> list[PartialRegistration]:
    found = stores.registrations.by("served", control_plane.metadata.uid or "")
    return [PartialRegistration.of(obj) for obj in found]


def _serves(registration: PartialRegistration, control_plane: ControlPlane) -> bool:
    return registration.status.control_plane_uid == control_plane.metadata.uid
