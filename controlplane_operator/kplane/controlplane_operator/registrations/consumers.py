"""Registrations and instances that use a control plane. Both end before the API server of the control plane does."""

from __future__ import annotations

from kplane.api import ControlPlane
from kplane.controlplane_operator.status.partial import PartialRegistration
from kplane.controlplane_operator.watch.stores import Stores

__all__ = ["instances_of", "registrations_of"]


def registrations_of(control_plane: ControlPlane, *, stores: Stores) -> list[str]:
    """Return the names of registrations whose status still allows services to run for the control plane.

    The spec of a registration is not considered.
    """
    return [
        registration.name
        for registration in _of(control_plane, stores)
        if registration.status.ready and _serves(registration, control_plane)
    ]


def instances_of(control_plane: ControlPlane, *, stores: Stores) -> list[str]:
    """Return the names of registrations whose instance runs, or may still run, for the control plane.

    mcm announces an instance before its start, and removes the announcement after its end. So a registration that is
    seen not ready and without an instance in the same read gets no further instance.
    """
    return [
        registration.name
        for registration in _of(control_plane, stores)
        if registration.status.instance is not None
        and registration.status.instance.control_plane_uid == control_plane.metadata.uid
    ]


def _of(control_plane: ControlPlane, stores: Stores) -> list[PartialRegistration]:
    objects = stores.registrations.by("served", control_plane.metadata.uid or "")
    return [PartialRegistration.of(obj) for obj in objects]


def _serves(registration: PartialRegistration, control_plane: ControlPlane) -> bool:
    return registration.status.control_plane_uid == control_plane.metadata.uid
