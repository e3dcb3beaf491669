"""ControlPlaneSnapshot: the data and keys of a control plane at a revision of etcd."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import AwareDatetime, Field, StringConstraints

from kplane.api.conditions import Conditions
from kplane.api.control_plane import DeletionPolicy
from kplane.api.extensions import Extension, Rule, rules
from kplane.api.home import ControlPlaneMode
from kplane.api.references import ObjectReference
from kplane.api.resource import ApiModel, Column, ResourceInfo, ResourceModel

__all__ = ["ControlPlaneSnapshot", "ControlPlaneSnapshotSpec", "ControlPlaneSnapshotStatus", "SnapshotPhase"]

_SAME: Final = Extension(
    rules(
        Rule(
            rule="self == oldSelf",
            message="spec.controlPlaneRef cannot be changed: create another ControlPlaneSnapshot",
            reason="FieldValueForbidden",
        )
    )
)


class SnapshotPhase(StrEnum):
    """Progress of a snapshot."""

    PENDING = "Pending"
    """The snapshot is queued, or waits for an object that a person has to create."""
    RUNNING = "Running"
    """The operator writes the file."""
    COMPLETED = "Completed"
    """The file is written, and verified by reading it again."""
    FAILED = "Failed"
    """The operator retries; condition Ready has the cause."""


class ControlPlaneSnapshotSpec(ApiModel):
    """The control plane to save."""

    control_plane_ref: Annotated[ObjectReference, _SAME]
    """The ControlPlane whose data and keys are saved. Its API server need not run."""
    deletion_policy: DeletionPolicy = DeletionPolicy.DESTROY
    """Treatment of the file when the snapshot is deleted: Destroy deletes the file, Retain keeps the file in the
    storage. The operator sets Retain if it creates a snapshot from a file of the storage.
    """


class ControlPlaneSnapshotStatus(ApiModel):
    """Contents and location of the snapshot."""

    phase: SnapshotPhase | None = None
    """Pending, Running, Completed, or Failed while the operator waits before a retry."""
    completion_time: AwareDatetime | None = None
    """The time at which the file was read again and verified."""
    control_plane_uid: Annotated[str | None, Field(alias="controlPlaneUID", max_length=64)] = None
    """The uid of the saved control plane. A later control plane of the same name has another uid."""
    mode: ControlPlaneMode | None = None
    """The mode of the control plane."""
    data_store: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Name of the shared etcd that held the data; absent for `default`, and for mode Dedicated."""
    revision: Annotated[int, Field(ge=0)] | None = None
    """The revision of etcd at which all keys were read."""
    highest_revision: Annotated[int, Field(ge=0)] | None = None
    """The highest revision of etcd that clients of the control plane can have seen. It is recorded at the deletion of
    the control plane, and of each control plane that was restored from the snapshot. A restore begins above it.
    """
    keys: Annotated[int, Field(ge=0)] | None = None
    """The number of saved keys. Events, and objects with the address of the API server, are left out."""
    bytes: Annotated[int, Field(ge=0)] | None = None
    """The number of bytes of these keys and their values."""
    sha256: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of the encrypted file."""
    service_cidr: Annotated[str | None, Field(alias="serviceCIDR", max_length=43)] = None
    """The network from which Services of the control plane get their addresses."""
    kubernetes_version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version that the API server reported last."""
    location: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Name of the file in the storage of snapshots. The prefix `secrets/` means that the file is in Secrets."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that was observed last."""
    conditions: Conditions = Field(default_factory=list)
    """The detailed state; Ready is True if the snapshot is Completed."""


class ControlPlaneSnapshot(ResourceModel):
    """The data and keys of a control plane at a revision, encrypted, in the storage of snapshots.

    The deletion of a snapshot deletes its file, unless spec.deletionPolicy is Retain.
    """

    resource: ClassVar[ResourceInfo] = ResourceInfo(
        kind="ControlPlaneSnapshot",
        plural="controlplanesnapshots",
        short_names=("cpsnap",),
        columns=(
            Column("Control Plane", "string", ".spec.controlPlaneRef.name"),
            Column("Phase", "string", ".status.phase"),
            Column("Keys", "integer", ".status.keys"),
            Column("Size", "integer", ".status.bytes"),
            Column("Version", "string", ".status.kubernetesVersion", priority=1),
            Column("Revision", "integer", ".status.revision", priority=1),
            Column("Location", "string", ".status.location", priority=1),
            Column("Age", "date", ".metadata.creationTimestamp"),
        ),
        selectable=(".spec.controlPlaneRef.name",),
    )

    spec: ControlPlaneSnapshotSpec
    """The control plane to save."""
    status: ControlPlaneSnapshotStatus = Field(default_factory=ControlPlaneSnapshotStatus)
    """Contents and location of the snapshot; written by the operator."""
