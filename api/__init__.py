"""The four kinds of kplane, their shared types and names."""

from __future__ import annotations

from api.conditions import READY, Condition, ConditionStatus, find_condition, is_true, set_condition
from api.control_plane import (
    CLUSTER_PATH_PATTERN,
    RESERVED_CLUSTER_PATHS,
    ControlPlane,
    ControlPlaneMode,
    ControlPlanePhase,
    ControlPlaneSpec,
    ControlPlaneStatus,
    DedicatedSpec,
    DeletionPolicy,
    EndpointAddress,
    EndpointType,
    VirtualSpec,
)
from api.control_plane_class import (
    AuthModel,
    AuthSpec,
    ControllersProfile,
    ControllersSettings,
    ControlPlaneClass,
    ControlPlaneClassSpec,
    ControlPlaneClassStatus,
)
from api.control_plane_endpoint import ControlPlaneEndpoint, ControlPlaneEndpointSpec, ControlPlaneEndpointStatus
from api.control_plane_registration import (
    ControlPlaneRegistration,
    ControlPlaneRegistrationSpec,
    ControlPlaneRegistrationStatus,
    RegistrationMode,
)
from api.references import ObjectReference, SecretReference, Service, TypedReference
from api.resource import Metadata, OwnerReference, ResourceInfo, ResourceModel

__all__ = [
    "CLUSTER_PATH_PATTERN",
    "READY",
    "RESERVED_CLUSTER_PATHS",
    "AuthModel",
    "AuthSpec",
    "Condition",
    "ConditionStatus",
    "ControlPlane",
    "ControlPlaneClass",
    "ControlPlaneClassSpec",
    "ControlPlaneClassStatus",
    "ControlPlaneEndpoint",
    "ControlPlaneEndpointSpec",
    "ControlPlaneEndpointStatus",
    "ControlPlaneMode",
    "ControlPlanePhase",
    "ControlPlaneRegistration",
    "ControlPlaneRegistrationSpec",
    "ControlPlaneRegistrationStatus",
    "ControlPlaneSpec",
    "ControlPlaneStatus",
    "ControllersProfile",
    "ControllersSettings",
    "DedicatedSpec",
    "DeletionPolicy",
    "EndpointAddress",
    "EndpointType",
    "Metadata",
    "ObjectReference",
    "OwnerReference",
    "RegistrationMode",
    "ResourceInfo",
    "ResourceModel",
    "SecretReference",
    "Service",
    "TypedReference",
    "VirtualSpec",
    "find_condition",
    "is_true",
    "set_condition",
]
