"""ControlPlaneRegistration: a request for services for a control plane."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from kplane.api.conditions import Conditions
from kplane.api.control_plane_class import ControllersSettings
from kplane.api.extensions import ATOMIC_LIST
from kplane.api.references import ObjectReference, SecretReference, Service, Services
from kplane.api.resource import ApiModel, Column, ResourceInfo, ResourceModel

__all__ = [
    "ControlPlaneRegistration",
    "ControlPlaneRegistrationSpec",
    "ControlPlaneRegistrationStatus",
    "InstanceStatus",
    "RegistrationMode",
]


class RegistrationMode(StrEnum):
    """Shared uses a multicluster controller manager of many registrations; Dedicated uses a separate process."""

    SHARED = "Shared"
    DEDICATED = "Dedicated"


class ControlPlaneRegistrationSpec(ApiModel):
    """Requested services, and their control plane."""

    control_plane_ref: ObjectReference
    """The ControlPlane to serve. A change moves the services, which end at the former control plane first."""
    endpoint_ref: ObjectReference | None = None
    """The ControlPlaneEndpoint with the address that the services use. The default is the endpoint of the control
    plane.
    """
    services: Services = Field(default_factory=list)
    """Services of the control plane: Controllers (kube-controller-manager), Scheduler (kube-scheduler). Absent or empty
    requests no service. Lower case is accepted, and duplicates are ignored. Workloads is accepted beside other
    services, and has no effect, as condition Supported reports. If several registrations request the same service of a
    control plane, the oldest registration gets it. The other registrations are not ready (ServiceTaken).
    """
    mode: RegistrationMode | None = None
    """Shared uses a controller manager that serves many registrations, Dedicated uses a controller manager for this
    registration only. After a change, the services end in the former controller manager before they start in the other.
    """
    kubeconfig_secret_ref: SecretReference | None = None
    """The Secret with the kubeconfig to use. The default is the Secret that the control plane publishes."""
    controllers: ControllersSettings | None = None
    """Controllers to run. The default is set by the class of the control plane."""


class InstanceStatus(ApiModel):
    """An instance that runs, or may run, for a registration: kube-controller-manager, kube-scheduler, or both."""

    control_plane_uid: Annotated[str | None, Field(alias="controlPlaneUID", max_length=128)] = None
    """metadata.uid of the control plane that the instance serves. While the registration moves, this is the former
    control plane.
    """
    version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version of kube-controller-manager, or of kube-scheduler if the instance has no kube-controller-manager."""
    services: Annotated[list[Service], Field(max_length=16), ATOMIC_LIST] = Field(default_factory=list)
    """The services of the instance. Another registration can get a service when it is no longer in this list."""
    mode: RegistrationMode | None = None
    """The mode of the controller manager that runs the instance: Shared (also if absent) or Dedicated. It differs from
    the mode of the registration during a change of mode.
    """


class ControlPlaneRegistrationStatus(ApiModel):
    """Resolved references of the registration; endpoint and Secret are published in a single write."""

    ready: bool | None = None
    """Whether the services can run: true as soon as every reference is resolved."""
    resolved_endpoint: Annotated[str, StringConstraints(max_length=2048)] | None = None
    """The URL that the services use."""
    resolved_kubeconfig_secret_ref: SecretReference | None = None
    """The Secret with the kubeconfig to use."""
    resolved_controllers_secret_ref: SecretReference | None = None
    """The Secret with the credentials and keys of controllers, if the control plane has such a Secret."""
    control_plane_uid: Annotated[str | None, Field(alias="controlPlaneUID", max_length=128)] = None
    """metadata.uid of the control plane. It differs from the uid of a later control plane of the same name."""
    services: Annotated[list[Service], Field(max_length=16), ATOMIC_LIST] = Field(default_factory=list)
    """The services of the spec, without duplicates and in title case."""
    mode: RegistrationMode | None = None
    """The mode of the spec, or Shared if the spec sets none."""
    controllers: ControllersSettings | None = None
    """Controllers to run, from the spec or else from the class of the control plane; absent if both set none."""
    version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version that the API server of the control plane reports."""
    instance: InstanceStatus | None = None
    """The instance. The field is set before the start of the instance, and removed after its end is confirmed. Data of
    the control plane are not deleted before. The multicluster controller manager writes the field and condition
    Running.
    """
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that was observed last."""
    conditions: Conditions = Field(default_factory=list)
    """The detailed state; Ready summarizes it, Running is the state of the instance."""


class ControlPlaneRegistration(ResourceModel):
    """A request for services, such as kube-controller-manager, for a control plane."""

    resource: ClassVar[ResourceInfo] = ResourceInfo(
        kind="ControlPlaneRegistration",
        plural="controlplaneregistrations",
        short_names=("cpr",),
        columns=(
            Column("Control Plane", "string", ".spec.controlPlaneRef.name"),
            Column("Ready", "string", ".status.ready"),
            Column("Running", "string", '.status.conditions[?(@.type=="Running")].status'),
            Column("Services", "string", ".spec.services", priority=1),
            Column("Endpoint", "string", ".status.resolvedEndpoint", priority=1),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
        selectable=(".spec.controlPlaneRef.name", ".spec.endpointRef.name"),
    )

    spec: ControlPlaneRegistrationSpec
    """Requested services, and their control plane."""
    status: ControlPlaneRegistrationStatus = Field(default_factory=ControlPlaneRegistrationStatus)
    """Resolved references, written by the operator, and the instance, written by mcm."""
