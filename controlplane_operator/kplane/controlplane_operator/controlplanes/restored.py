"""Which snapshot a new control plane begins with."""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from kplane.api import ControlPlane, ControlPlaneMode, ControlPlaneSnapshot, RestoreStatus, SnapshotPhase
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.watch.cache import Store

__all__ = ["restore_status", "restored_service_cidr"]

_ABOVE: Final = 1_000_000_000
"""So many revisions the former control plane may have had since the snapshot. Clients know them."""


def restore_status(control_plane: ControlPlane, *, snapshots: Store) -> RestoreStatus | None:
    """Return what the control plane is restored from: decided once, by the snapshot that its source names.

    Raises ConditionError (SnapshotNotReady).
    """
    if control_plane.spec.source is None or control_plane.status.restore is not None:
        return control_plane.status.restore
    snapshot = _snapshot(control_plane, snapshots=snapshots)
    status = snapshot.status
    if status.location is None or status.sha256 is None or status.revision is None:
        raise _not_ready(snapshot.name, "it does not say where its file is")
    return RestoreStatus(
        snapshot=snapshot.name, location=status.location, sha256=status.sha256, begins_at=status.revision + _ABOVE
    )


def restored_service_cidr(control_plane: ControlPlane, *, snapshots: Store) -> str | None:
    """Return the network of Services that the data are of; None for a control plane that is not restored."""
    if control_plane.spec.source is None:
        return None
    if control_plane.status.restore is not None:
        return control_plane.status.service_cidr
    return _snapshot(control_plane, snapshots=snapshots).status.service_cidr


def _snapshot(control_plane: ControlPlane, *, snapshots: Store) -> ControlPlaneSnapshot:
    source = control_plane.spec.source
    name = source.snapshot_ref.name if source is not None else ""
    obj = snapshots.get(("", name))
    if obj is None:
        raise _not_ready(name, "it does not exist")
    try:
        snapshot = ControlPlaneSnapshot.model_validate(obj)
    except ValidationError:
        raise _not_ready(name, "this version of kplane does not understand it") from None
    if snapshot.status.phase is not SnapshotPhase.COMPLETED or snapshot.deleting:
        raise _not_ready(name, "it is not completed, or is being deleted")
    if snapshot.status.mode is not ControlPlaneMode.DEDICATED:
        raise _not_ready(
            name, "it is of a control plane of mode Virtual, and only those of mode Dedicated are restored"
        )
    return snapshot


def _not_ready(name: str, why: str) -> ConditionError:
    return ConditionError(Reason.SNAPSHOT_NOT_READY, f"ControlPlaneSnapshot {name} cannot be restored: {why}")
