"""ControlPlaneRegistration: the wish that services run for a control plane."""

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
    """Shared: one multicluster controller manager serves many registrations; Dedicated: one of its own."""

    SHARED = "Shared"
    DEDICATED = "Dedicated"


class ControlPlaneRegistrationSpec(ApiModel):
    """Which services run, and for which control plane."""

    control_plane_ref: ObjectReference
    """The ControlPlane to serve. Naming another one moves the services: they end at the old one first."""
    endpoint_ref: ObjectReference | None = None
    """The ControlPlaneEndpoint to reach it by; the default is the control plane's own."""
    services: Services = Field(default_factory=list)
    """What runs for the control plane: Controllers (kube-controller-manager), Scheduler (kube-scheduler). Absent or
    empty for nothing. Lower case is accepted as well, and duplicates count once. Workloads is accepted beside them, and
    nothing serves it: condition Supported says so. Of several registrations that ask for one service of a control
    plane, the oldest has it. The others are not ready (ServiceTaken).
    """
    mode: RegistrationMode | None = None
    """Shared: by a controller manager that serves many registrations; Dedicated: by one of its own. A change ends the
    services at the one before they begin at the other.
    """
    kubeconfig_secret_ref: SecretReference | None = None
    """The Secret with the kubeconfig to use; the default is the one that the control plane publishes."""
    controllers: ControllersSettings | None = None
    """Which controllers run; the default is what the class of the control plane says."""


class InstanceStatus(ApiModel):
    """What works, or may work, for a registration: kube-controller-manager, kube-scheduler, or both."""

    control_plane_uid: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, alias="controlPlaneUID"
    )
    """metadata.uid of the control plane that it works for; of the former one while the registration moves."""
    version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version of kube-controller-manager, or of kube-scheduler where that runs alone."""
    services: Annotated[list[Service], Field(max_length=16), ATOMIC_LIST] = Field(default_factory=list)
    """The services that it provides. Another registration can get one of them when this no longer names it."""
    mode: RegistrationMode | None = None
    """Who runs it: a controller manager that serves many registrations (Shared, also where this is absent), or one of
    the registration's own (Dedicated). It differs from the mode of the registration while that changes.
    """


class ControlPlaneRegistrationStatus(ApiModel):
    """What the registration resolves to: endpoint and Secret belong together and are published in one write."""

    ready: bool | None = None
    """Whether the services can run: true as soon as everything below is resolved."""
    resolved_endpoint: Annotated[str, StringConstraints(max_length=2048)] | None = None
    """The URL that the services use."""
    resolved_kubeconfig_secret_ref: SecretReference | None = None
    """The Secret with the kubeconfig to use."""
    resolved_controllers_secret_ref: SecretReference | None = None
    """The Secret with the credentials and keys of controllers, where the control plane has one."""
    control_plane_uid: Annotated[str, StringConstraints(max_length=128)] | None = Field(
        default=None, alias="controlPlaneUID"
    )
    """metadata.uid of the control plane, so that a new one of the same name is told from the old one."""
    services: Annotated[list[Service], Field(max_length=16), ATOMIC_LIST] = Field(default_factory=list)
    """The services of the spec, each once and in title case."""
    mode: RegistrationMode | None = None
    """The mode of the spec, Shared where it has none."""
    controllers: ControllersSettings | None = None
    """Which controllers run, by the spec, else by the class of the control plane; absent if both are silent."""
    version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version that the control plane's API server reports."""
    instance: InstanceStatus | None = None
    """The instance: there from before its start until its end is confirmed, and until then no data of its control plane
    are deleted. Written by the multicluster controller manager, as is the condition Running.
    """
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that this status answers."""
    conditions: Conditions = Field(default_factory=list)
    """The state in detail; Ready sums it up, Running tells of the instance."""


class ControlPlaneRegistration(ResourceModel):
    """The wish that services, such as kube-controller-manager, run for a control plane."""

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
    """Which services run, and for which control plane."""
    status: ControlPlaneRegistrationStatus = Field(default_factory=ControlPlaneRegistrationStatus)
    """What the registration resolves to, written by the operator, and its instance, written by mcm."""
