"""The five kinds of kplane, their shared types and names."""

from __future__ import annotations

from kplane.api.api_server_settings import DEFAULT_SERVICE_CIDR, MANAGED_FLAGS, ApiServerMemory, ApiServerSettings
from kplane.api.audit import AuditPolicy
from kplane.api.compute_resources import ComputeResources, ResourceAmounts, StorageAmount, quantity
from kplane.api.conditions import (
    DELETING,
    READY,
    RUNNING,
    Condition,
    ConditionStatus,
    find_condition,
    is_true,
    set_condition,
)
from kplane.api.control_plane import (
    RESERVED_CLUSTER_PATHS,
    ControlPlane,
    ControlPlanePhase,
    ControlPlaneSpec,
    ControlPlaneStatus,
    DedicatedSpec,
    DeletionPolicy,
    EndpointAddress,
    EndpointPolicy,
    EndpointStyle,
    EndpointType,
    EtcdSettings,
    RememberedClass,
    RestoreStatus,
    SourceSpec,
    StorageStatus,
    VirtualSpec,
    is_cluster_path,
)
from kplane.api.control_plane_class import (
    AuthModel,
    AuthSpec,
    ControllersProfile,
    ControllersSettings,
    ControlPlaneClass,
    ControlPlaneClassSpec,
    ControlPlaneClassStatus,
    SnapshotSettings,
    StorageSettings,
    VirtualSettings,
)
from kplane.api.control_plane_endpoint import ControlPlaneEndpoint, ControlPlaneEndpointSpec, ControlPlaneEndpointStatus
from kplane.api.control_plane_registration import (
    ControlPlaneRegistration,
    ControlPlaneRegistrationSpec,
    ControlPlaneRegistrationStatus,
    InstanceStatus,
    RegistrationMode,
)
from kplane.api.control_plane_snapshot import (
    ControlPlaneSnapshot,
    ControlPlaneSnapshotSpec,
    ControlPlaneSnapshotStatus,
    SnapshotPhase,
)
from kplane.api.destinations import Destination
from kplane.api.hibernation import HibernationReason, HibernationStatus, IdleSettings, StartPolicy
from kplane.api.home import ControlPlaneMode, Home, Volume
from kplane.api.kubernetes_version import KubernetesVersion
from kplane.api.migration import MigrationBlocker, MigrationPlan, MigrationSpec, MigrationStatus, MigrationStep
from kplane.api.oidc import SERVICE_ACCOUNT_ISSUER, OidcIssuer
from kplane.api.pod_scheduling import PodScheduling
from kplane.api.references import ObjectReference, SecretReference, Service, TypedReference
from kplane.api.resource import Metadata, OwnerReference, ResourceInfo, ResourceModel
from kplane.api.rotation import MAX_ROTATION_VALUE, RotationPhase, RotationStatus
from kplane.api.service_settings import ServiceSettings

__all__ = [
    "DEFAULT_SERVICE_CIDR",
    "DELETING",
    "MANAGED_FLAGS",
    "MAX_ROTATION_VALUE",
    "READY",
    "RESERVED_CLUSTER_PATHS",
    "RUNNING",
    "SERVICE_ACCOUNT_ISSUER",
    "ApiServerMemory",
    "ApiServerSettings",
    "AuditPolicy",
    "AuthModel",
    "AuthSpec",
    "ComputeResources",
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
    "ControlPlaneSnapshot",
    "ControlPlaneSnapshotSpec",
    "ControlPlaneSnapshotStatus",
    "ControlPlaneSpec",
    "ControlPlaneStatus",
    "ControllersProfile",
    "ControllersSettings",
    "DedicatedSpec",
    "DeletionPolicy",
    "Destination",
    "EndpointAddress",
    "EndpointPolicy",
    "EndpointStyle",
    "EndpointType",
    "EtcdSettings",
    "HibernationReason",
    "HibernationStatus",
    "Home",
    "IdleSettings",
    "InstanceStatus",
    "KubernetesVersion",
    "Metadata",
    "MigrationBlocker",
    "MigrationPlan",
    "MigrationSpec",
    "MigrationStatus",
    "MigrationStep",
    "ObjectReference",
    "OidcIssuer",
    "OwnerReference",
    "PodScheduling",
    "RegistrationMode",
    "RememberedClass",
    "ResourceAmounts",
    "ResourceInfo",
    "ResourceModel",
    "RestoreStatus",
    "RotationPhase",
    "RotationStatus",
    "SecretReference",
    "Service",
    "ServiceSettings",
    "SnapshotPhase",
    "SnapshotSettings",
    "SourceSpec",
    "StartPolicy",
    "StorageAmount",
    "StorageSettings",
    "StorageStatus",
    "TypedReference",
    "VirtualSettings",
    "VirtualSpec",
    "Volume",
    "find_condition",
    "is_cluster_path",
    "is_true",
    "quantity",
    "set_condition",
]
