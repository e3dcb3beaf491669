"""ControlPlaneSnapshot: the data and keys of one control plane, saved at one revision."""

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
    """How far a snapshot is."""

    PENDING = "Pending"
    """It waits for its turn, or for an object that a person has to create."""
    RUNNING = "Running"
    """The operator writes it."""
    COMPLETED = "Completed"
    """It is written, was read again, and is what was written."""
    FAILED = "Failed"
    """The operator tries it again; the condition Ready says what fails."""


class ControlPlaneSnapshotSpec(ApiModel):
    """What is saved."""

    control_plane_ref: Annotated[ObjectReference, _SAME]
    """The ControlPlane whose data and keys are saved. Its API server need not run."""
    deletion_policy: DeletionPolicy = DeletionPolicy.DESTROY
    """What happens to the file when the snapshot is deleted: Destroy deletes it, Retain keeps it in the storage. The
    operator sets Retain where it makes a snapshot from a file of the storage.
    """


class ControlPlaneSnapshotStatus(ApiModel):
    """What was saved, and where it is."""

    phase: SnapshotPhase | None = None
    """Pending, Running, Completed, or Failed while the operator waits to try again."""
    completion_time: AwareDatetime | None = None
    """When the snapshot was read again and found to be what was written."""
    control_plane_uid: Annotated[str, StringConstraints(max_length=64)] | None = Field(
        default=None, alias="controlPlaneUID"
    )
    """The uid of the control plane that was saved: a later one of its name is another one."""
    mode: ControlPlaneMode | None = None
    """The mode of the control plane."""
    data_store: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The shared etcd that had the data; absent for `default`, and for mode Dedicated."""
    revision: Annotated[int, Field(ge=0)] | None = None
    """The revision of etcd that all keys are of."""
    highest_revision: Annotated[int, Field(ge=0)] | None = None
    """The highest revision of etcd that clients of the control plane can have seen, recorded when it was deleted, and
    at the deletion of each one that was restored from the snapshot. A restore begins above it.
    """
    keys: Annotated[int, Field(ge=0)] | None = None
    """How many keys were saved. Left out are Events, and what says where the API server is."""
    bytes: Annotated[int, Field(ge=0)] | None = None
    """How many bytes these keys and their values have."""
    sha256: Annotated[str, StringConstraints(max_length=64)] | None = None
    """The SHA-256 of the file, which is encrypted."""
    service_cidr: Annotated[str, StringConstraints(max_length=43)] | None = Field(default=None, alias="serviceCIDR")
    """The network that Services of the control plane get their addresses from."""
    kubernetes_version: Annotated[str, StringConstraints(max_length=63)] | None = None
    """The version that the API server reported last."""
    location: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """The name of the file in the storage of snapshots; with `secrets/` before it if it is in Secrets."""
    observed_generation: Annotated[int, Field(ge=0)] | None = None
    """The metadata.generation that this status answers."""
    conditions: Conditions = Field(default_factory=list)
    """The state in detail; Ready is True if the snapshot is Completed."""


class ControlPlaneSnapshot(ResourceModel):
    """The data and keys of a control plane at one revision, encrypted, in the storage of snapshots.

    Its deletion deletes the file, unless spec.deletionPolicy is Retain.
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
    """What is saved."""
    status: ControlPlaneSnapshotStatus = Field(default_factory=ControlPlaneSnapshotStatus)
    """What was saved, and where it is; written by the operator."""
