"""The highest revision of etcd that clients of a control plane have seen. A restore begins above it.

While a control plane lives, the etcd of its home has it: each home begins above the one before. When it is deleted, the
snapshots from which it can be restored record it, before its data go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kplane.api import ControlPlane, SnapshotPhase
from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Movable, data_errors
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialSnapshot, as_recorded

__all__ = ["UNKNOWN_REVISIONS", "ServedRevisions"]

UNKNOWN_REVISIONS: Final = 1_000_000_000
"""Revisions that a control plane may have had since the last one that is known."""
_LIVING_REVISIONS: Final = 100_000
"""Revisions that a control plane may have after its snapshot is restored beside it, until clients leave it."""


class ServedRevisions:
    """Records the highest revisions of deleted control planes, and reads those of living ones."""

    def __init__(self, context: OperatorContext, *, homes: Callable[[ControlPlane], Movable]) -> None:
        """`homes` returns the way to the API server of a home."""
        self._context = context
        self._homes = homes

    async def remember(self, control_plane: ControlPlane, *, waits: bool) -> None:
        """Record the highest revision in the snapshots of a control plane whose API server has ended.

        It is called before the data are deleted, and may be repeated after that. Raises ConditionError if etcd does not
        answer and `waits` is set. Otherwise an upper bound is recorded.
        """
        snapshots = list(self._snapshots(control_plane))
        if control_plane.status.endpoint is None or not snapshots:
            return
        known = _known(control_plane, snapshots)
        try:
            revision = max(known, await self._read(control_plane))
        except ConditionError as error:
            recorded = [snapshot.status.highest_revision for snapshot in snapshots]
            if all(highest is not None and highest >= known for highest in recorded):
                # An earlier call recorded it, and its etcd is deleted by now.
                return
            if waits:
                raise ConditionError(
                    Reason.DELETING, f"waiting for etcd, to record in snapshots where a restore begins: {error.message}"
                ) from error
            revision = known + UNKNOWN_REVISIONS
        for snapshot in snapshots:
            if (snapshot.status.highest_revision or 0) < revision:
                status = snapshot.status.model_copy(update={"highest_revision": revision})
                await self._context.status.write(self._context.stores.snapshots, snapshot, status=status)

    async def of_living_source(self, control_plane: ControlPlane) -> int | None:
        """Return an upper bound for the control plane whose snapshot a new one begins with.

        None: it is deleted or its etcd does not answer, or the beginning is decided already.
        """
        source, stores = control_plane.spec.source, self._context.stores
        if source is None or source.snapshot_ref is None or source.clone or control_plane.status.restore is not None:
            return None
        obj = stores.snapshots.get(("", source.snapshot_ref.name))
        uid = PartialSnapshot.of(obj).status.control_plane_uid if obj is not None else None
        for found in stores.control_planes.by("uid", uid) if uid is not None else ():
            former = as_recorded(found)
            if former.status.endpoint is None or former.spec.endpoint_ref is not None:
                continue
            try:
                return await self._read(former) + _LIVING_REVISIONS
            except ConditionError:
                # Perhaps the restore is there because that etcd is lost.
                return None
        return None

    async def _read(self, control_plane: ControlPlane) -> int:
        async with self._homes(control_plane).connect(control_plane) as place:
            with data_errors():
                return await place.client.revision()

    def _snapshots(self, control_plane: ControlPlane) -> Iterator[PartialSnapshot]:
        """Give all completed snapshots whose restore can have clients of the control plane: its own, and its origin's.

        Those of an earlier one of its name count as well, because clients know an address by the name. An imported one
        is of another management cluster, where clients have seen other revisions at that name.
        """
        restore = control_plane.status.restore
        uids = {control_plane.metadata.uid, restore.control_plane_uid if restore is not None else None} - {None}
        for obj in self._context.stores.snapshots:
            snapshot = PartialSnapshot.of(obj)
            if snapshot.status.phase is not SnapshotPhase.COMPLETED:
                continue
            named = ((obj.get("spec") or {}).get("controlPlaneRef") or {}).get("name") == control_plane.name
            imported = IMPORTED_FROM_ANNOTATION in (obj["metadata"].get("annotations") or {})
            if (named and not imported) or snapshot.status.control_plane_uid in uids:
                yield snapshot


def _known(control_plane: ControlPlane, snapshots: list[PartialSnapshot]) -> int:
    """Return the highest revision that the control plane is known to have had, without its etcd."""
    status, uid = control_plane.status, control_plane.metadata.uid
    known = [snapshot.status.revision for snapshot in snapshots if snapshot.status.control_plane_uid == uid]
    if status.restore is not None:
        known.append(status.restore.begins_at)
    if status.migration is not None and status.migration.cut_time is not None:
        known.append(status.migration.begins_at)
    return max((revision for revision in known if revision is not None), default=0)
