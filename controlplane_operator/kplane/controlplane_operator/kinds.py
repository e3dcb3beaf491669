"""The five kinds of kplane as resources of the API."""

from __future__ import annotations

from typing import Any, Final

from kplane.api import (
    ControlPlane,
    ControlPlaneClass,
    ControlPlaneEndpoint,
    ControlPlaneRegistration,
    ControlPlaneSnapshot,
    ResourceModel,
)
from kplane.api.resource import ResourceInfo
from kplane.provider import Resource

__all__ = [
    "CONTROL_PLANES",
    "CONTROL_PLANE_CLASSES",
    "CONTROL_PLANE_ENDPOINTS",
    "CONTROL_PLANE_REGISTRATIONS",
    "CONTROL_PLANE_SNAPSHOTS",
    "owner_reference",
]


def _served(info: ResourceInfo) -> Resource:
    return Resource(info.api_version, info.kind, info.plural, namespaced=info.scope == "Namespaced")


CONTROL_PLANES: Final = _served(ControlPlane.resource)
CONTROL_PLANE_CLASSES: Final = _served(ControlPlaneClass.resource)
CONTROL_PLANE_ENDPOINTS: Final = _served(ControlPlaneEndpoint.resource)
CONTROL_PLANE_REGISTRATIONS: Final = _served(ControlPlaneRegistration.resource)
CONTROL_PLANE_SNAPSHOTS: Final = _served(ControlPlaneSnapshot.resource)


def owner_reference(owner: ResourceModel) -> dict[str, Any]:
    """Return an ownerReference to this owner, with which garbage collection deletes the dependent object."""
    return {
        "apiVersion": owner.resource.api_version,
        "kind": owner.resource.kind,
        "name": owner.name,
        "uid": owner.metadata.uid,
    }
