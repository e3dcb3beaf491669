"""Initial data of a new control plane by `spec.source`: a snapshot, or another control plane."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from kplane.api import (
    DEFAULT_DATA_STORE,
    ControlPlane,
    ControlPlaneMode,
    ControlPlaneSnapshot,
    ControlPlaneSnapshotStatus,
    RestoreStatus,
    SnapshotPhase,
)
from kplane.api.reasons import Reason
from kplane.controlplane_operator.controlplanes.served_revisions import UNKNOWN_REVISIONS
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialSnapshot, as_recorded
from kplane.controlplane_operator.watch.stores import Stores

__all__ = ["restore_status", "restored_service_cidr"]

_UNKNOWN_IN_SHARED_ETCD: Final = 100_000
"""Same as `UNKNOWN_REVISIONS`, for the shared etcd. Each revision there takes a write."""


def restore_status(control_plane: ControlPlane, *, stores: Stores, living: int | None = None) -> RestoreStatus | None:
    """Return the origin of the control plane's data. It is decided once and then kept in the status.

    `living` is an upper bound of the revisions of the saved control plane, if that still exists. Raises ConditionError
    (SourceNotReady).
    """
    source = control_plane.spec.source
    if source is None or control_plane.status.restore is not None:
        return control_plane.status.restore
    if source.snapshot_ref is None:
        original = _original(control_plane, stores=stores)
        return RestoreStatus(
            control_plane_uid=original.metadata.uid, kubernetes_version=original.status.version, begins_at=None
        )
    name, home = source.snapshot_ref.name, control_plane.home
    status = _snapshot(control_plane, stores=stores)
    newest, highest = _recorded_revisions(status, stores=stores)
    if living is not None:
        highest = max(living, highest or 0)
    # A snapshot above the highest revision was made later, so that its clients may have seen even higher revisions.
    served = highest if highest is not None and highest >= newest else None
    if (
        served is None
        and not source.clone
        and status.mode is home.mode is ControlPlaneMode.VIRTUAL
        and status.data_store != home.data_store
    ):
        raise _not_ready(
            f"ControlPlaneSnapshot {name}",
            f"its data were in data store {status.data_store or DEFAULT_DATA_STORE}, whose revisions clients know: name"
            " that one in spec.virtual.dataStoreRef, or set spec.mode Dedicated or spec.source.clone",
        )
    if status.location is None or status.sha256 is None or status.revision is None or status.control_plane_uid is None:
        raise _not_ready(f"ControlPlaneSnapshot {name}", "it does not say where its file is")
    return RestoreStatus(
        snapshot=name,
        location=status.location,
        sha256=status.sha256,
        control_plane_uid=status.control_plane_uid,
        kubernetes_version=status.kubernetes_version,
        begins_at=None if source.clone else _begins_at(newest, served=served, mode=home.mode),
    )


def restored_service_cidr(control_plane: ControlPlane, *, stores: Stores) -> str | None:
    """Return the Service network of the source's data; None for a control plane without source."""
    source = control_plane.spec.source
    if source is None:
        return None
    if control_plane.status.restore is not None:
        return control_plane.status.service_cidr
    if source.snapshot_ref is None:
        return _original(control_plane, stores=stores).status.service_cidr
    return _snapshot(control_plane, stores=stores).service_cidr


def _recorded_revisions(status: ControlPlaneSnapshotStatus, *, stores: Stores) -> tuple[int, int | None]:
    """Return the newest and the highest revision that all snapshots of the same control plane record.

    The newest one is that of a snapshot. The highest one, which a deletion recorded, is None if no snapshot has it.
    """
    siblings = [status]
    for obj in stores.snapshots:
        sibling = PartialSnapshot.of(obj).status
        if sibling.phase is SnapshotPhase.COMPLETED and sibling.control_plane_uid == status.control_plane_uid:
            siblings.append(sibling)
    newest = max((sibling.revision for sibling in siblings if sibling.revision is not None), default=0)
    highest = (sibling.highest_revision for sibling in siblings if sibling.highest_revision is not None)
    return newest, max(highest, default=None)


def _begins_at(newest: int, *, served: int | None, mode: ControlPlaneMode) -> int:
    """Return the lowest revision that no client has seen.

    A higher revision would be a drawback: a control plane far above the shared etcd could not move there. `newest` is
    the revision of the newest snapshot, and `served` an upper bound of the revisions that clients have seen.
    """
    if served is not None:
        return served + 1
    return newest + (UNKNOWN_REVISIONS if mode is ControlPlaneMode.DEDICATED else _UNKNOWN_IN_SHARED_ETCD)


def _snapshot(control_plane: ControlPlane, *, stores: Stores) -> ControlPlaneSnapshotStatus:
    source = control_plane.spec.source
    name = source.snapshot_ref.name if source is not None and source.snapshot_ref is not None else ""
    title = f"ControlPlaneSnapshot {name}"
    obj = stores.snapshots.get(("", name))
    if obj is None:
        raise _not_ready(title, "it does not exist")
    try:
        snapshot = ControlPlaneSnapshot.model_validate(obj)
    except ValidationError:
        raise _not_ready(title, "this version of kplane does not understand it") from None
    if snapshot.status.phase is not SnapshotPhase.COMPLETED or snapshot.deleting:
        raise _not_ready(title, "it is not completed, or is being deleted")
    return snapshot.status


def _original(control_plane: ControlPlane, *, stores: Stores) -> ControlPlane:
    source = control_plane.spec.source
    name = source.control_plane_ref.name if source is not None and source.control_plane_ref is not None else ""
    title = f"ControlPlane {name}"
    obj = stores.control_planes.get(("", name))
    if obj is None:
        raise _not_ready(title, "it does not exist")
    original = as_recorded(obj)
    if original.metadata.uid == control_plane.metadata.uid:
        raise _not_ready(title, "it is this control plane itself")
    if original.spec.endpoint_ref is not None:
        raise _not_ready(title, "kplane does not run it, and does not have its data")
    if original.status.endpoint is None or original.deleting:
        raise _not_ready(title, "it was not Ready yet, or is being deleted")
    return original


def _not_ready(what: str, why: str) -> ConditionError:
    return ConditionError(Reason.SOURCE_NOT_READY, f"{what} cannot be the source of this control plane: {why}")
