"""The highest etcd revision that clients of a control plane have seen. A restore begins above it.

While a control plane exists, the etcd of its home has this revision, because each home begins above the previous home.
The revision of an etcd that was emptied means nothing. The status then has the last revision that was served.
At the deletion of the control plane, its snapshots record the revision before the data are deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kplane.api import ControlPlane, ControlPlaneMode, SnapshotPhase
from kplane.api.names import IMPORTED_FROM_ANNOTATION
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backends.base import Movable
from kplane.controlplane_operator.backends.served_data import UNSEEN_REVISIONS, recorded_revision, served_data
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialSnapshot, as_recorded
from kplane.data import DataError, DataLost, check_served

__all__ = ["UNKNOWN_REVISIONS", "ServedRevisions"]

UNKNOWN_REVISIONS: Final = 1_000_000_000
"""Upper bound for the revisions of a control plane since its last known revision."""
_LIVING_REVISIONS: Final = 100_000
"""Upper bound for the revisions of the original after a restore of its snapshot, until clients leave the original."""


class ServedRevisions:
    """Records the highest revisions of deleted control planes, and reads the revisions of existing control planes."""

    def __init__(self, context: OperatorContext, *, homes: Callable[[ControlPlane], Movable]) -> None:
        """`homes` returns the provisioner of a control plane's home."""
        self._context = context
        self._homes = homes

    async def remember(self, control_plane: ControlPlane, *, waits: bool) -> None:
        """Record the highest revision in the snapshots of a control plane whose API server has ended.

        Call this before the data are deleted; it may be repeated afterwards. Raises ConditionError (Deleting) if etcd
        does not answer and `waits` is True. If `waits` is False, or if the etcd lost the data, an upper bound is
        recorded instead.
        """
        snapshots = list(self._snapshots(control_plane))
        if control_plane.status.endpoint is None or not snapshots:
            return
        lower_bound = _known(control_plane, snapshots)
        try:
            revision = max(lower_bound, await self._read(control_plane, known=lower_bound))
        except (ConditionError, DataLost) as error:
            recorded = [snapshot.status.highest_revision for snapshot in snapshots]
            if all(highest is not None and highest >= lower_bound for highest in recorded):
                # An earlier call recorded the revision, and the data or the etcd are deleted by now.
                return
            if waits and isinstance(error, ConditionError):
                raise ConditionError(
                    Reason.DELETING, f"waiting for etcd, to record in snapshots where a restore begins: {error.message}"
                ) from error
            is_seen = control_plane.status.served_revision is not None
            revision = lower_bound + (UNSEEN_REVISIONS if is_seen else UNKNOWN_REVISIONS)
        for snapshot in snapshots:
            if (snapshot.status.highest_revision or 0) < revision:
                status = snapshot.status.model_copy(update={"highest_revision": revision})
                await self._context.status.write(self._context.stores.snapshots, snapshot, status=status)

    async def of_living_source(self, control_plane: ControlPlane) -> int | None:
        """Return an upper bound of the revisions of the control plane from whose snapshot a new control plane starts.

        Returns None if that control plane is deleted, or if the start revision is already decided. Returns None also if
        its etcd does not answer or lost the data, and its status has no served revision.
        """
        source, stores = control_plane.spec.source, self._context.stores
        if source is None or source.snapshot_ref is None or source.clone or control_plane.status.restore is not None:
            return None
        obj = stores.snapshots.get(("", source.snapshot_ref.name))
        uid = PartialSnapshot.of(obj).status.control_plane_uid if obj is not None else None
        for candidate in stores.control_planes.by("uid", uid) if uid is not None else ():
            former = as_recorded(candidate)
            if former.status.endpoint is None or former.spec.endpoint_ref is not None:
                continue
            try:
                known = _known(former, list(self._snapshots(former)))
                return max(known, await self._read(former, known=known)) + _LIVING_REVISIONS
            except (ConditionError, DataLost):
                # The loss of that etcd may be the cause of this restore.
                served = former.status.served_revision
                return served + UNSEEN_REVISIONS if served is not None else None
        return None

    async def _read(self, control_plane: ControlPlane, *, known: int) -> int:
        """Return the revision of the etcd with the data. Raises DataLost, and ConditionError if it does not answer.

        A shared etcd that only lost the keys of this control plane is not below `known`, and its revision counts.
        """
        served = served_data(control_plane)
        async with self._homes(control_plane).connect(control_plane) as place:
            try:
                revision = await place.client.revision()
                if control_plane.home.mode is ControlPlaneMode.VIRTUAL and revision >= known:
                    return revision
                if served is not None:
                    await check_served(place.client, place.prefix, served=served)
            except DataLost:
                raise
            except DataError as error:
                raise ConditionError(Reason.MIGRATING, str(error)) from error
        return revision

    def _snapshots(self, control_plane: ControlPlane) -> Iterator[PartialSnapshot]:
        """Yield completed snapshots of the control plane and of its origin, whose restores may have its clients.

        Snapshots of earlier control planes of the same name count, because clients know an address by its name.
        Imported snapshots of that name do not: in another management cluster, clients have seen other revisions.
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
    """Return the highest revision that status and snapshots record for the control plane, without its etcd."""
    uid = control_plane.metadata.uid
    revisions = [snapshot.status.revision for snapshot in snapshots if snapshot.status.control_plane_uid == uid]
    revisions.append(recorded_revision(control_plane))
    return max((revision for revision in revisions if revision is not None), default=0)
