"""ControlPlaneClass: defaults and policies for control planes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, StringConstraints

from api.conditions import Conditions
from api.control_plane import ControlPlaneMode, DeletionPolicy
from api.extensions import ATOMIC_LIST
from api.references import Services
from api.resource import ApiModel, Column, ResourceInfo, ResourceModel

__all__ = [
    "AuthModel",
    "AuthSpec",
    "ControlPlaneClass",
    "ControlPlaneClassSpec",
    "ControlPlaneClassStatus",
    "ControllersProfile",
    "ControllersSettings",
]


class AuthModel(StrEnum):
    """How the published kubeconfig authenticates; `v0` and `basic` are older names of `token`."""

    V0 = "v0"
    BASIC = "basic"
    TOKEN = "token"  # noqa: S105 - the name of a model
    X509 = "x509"


class ControllersProfile(StrEnum):
    """Which controllers an instance of kube-controller-manager runs.

    Core is what makes an API server complete (namespaces, service accounts, garbage collection, roles, certificates),
    Nodeless adds the controllers of workloads, Full adds those of nodes and volumes.
    """

    CORE = "Core"
    NODELESS = "Nodeless"
    FULL = "Full"


class AuthSpec(ApiModel):
    """Who the published kubeconfig is for the control plane, and how it proves it."""

    model: AuthModel = AuthModel.TOKEN
    """How the kubeconfig authenticates: `token` by a ServiceAccount token that is renewed before it expires, `x509` by
    a client certificate that is renewed likewise. `v0` and `basic`, which existing manifests have, mean `token`.
    """
    default_role: Annotated[str, StringConstraints(min_length=1, max_length=253)] = "cluster-admin"
    """The ClusterRole that the kubeconfig's identity has in the control plane."""


class ControllersSettings(ApiModel):
    """Which controllers run for a control plane."""

    profile: ControllersProfile = ControllersProfile.NODELESS
    """Core: what makes an API server complete (namespaces, service accounts, garbage collection, roles, certificates).
    Nodeless: those, and the controllers of workloads. Full: those, and the controllers of nodes and volumes.
    """


class ControlPlaneClassSpec(ApiModel):
    """Defaults and policies for the control planes of the class."""

    deletion_policy: DeletionPolicy | None = None
    """What happens to the data of a deleted control plane that sets no policy itself: Retain (default) or Destroy."""
    auth: AuthSpec = AuthSpec()
    """Who the published kubeconfig is for the control plane, and how it proves it."""
    addons: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=253)]], Field(max_length=64), ATOMIC_LIST
    ] = Field(default_factory=list)
    """Add-ons that every control plane of the class gets."""
    modes_allowed: Annotated[list[ControlPlaneMode], Field(max_length=8), ATOMIC_LIST] = Field(default_factory=list)
    """Modes that control planes of the class may have; absent or empty for every mode."""
    controllers: ControllersSettings = ControllersSettings()
    """Which controllers run for control planes of the class."""
    default_services: Services = Field(default_factory=list)
    """Services that each control plane of the class is registered for by itself; absent or empty for none."""


class ControlPlaneClassStatus(ApiModel):
    """What the operator makes of the class."""

    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that this status answers."""
    conditions: Conditions = Field(default_factory=list)
    """The state in detail; Ready sums it up."""


class ControlPlaneClass(ResourceModel):
    """Defaults and policies that control planes take from the class they name in `spec.classRef`."""

    resource: ClassVar[ResourceInfo] = ResourceInfo(
        kind="ControlPlaneClass",
        plural="controlplaneclasses",
        short_names=("cpclass",),
        columns=(
            Column("Deletion Policy", "string", ".spec.deletionPolicy"),
            Column("Profile", "string", ".spec.controllers.profile"),
            Column("Ready", "string", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
    )

    spec: ControlPlaneClassSpec
    """Defaults and policies for the control planes of the class."""
    status: ControlPlaneClassStatus = Field(default_factory=ControlPlaneClassStatus)
    """What the operator makes of the class; written by the operator."""
