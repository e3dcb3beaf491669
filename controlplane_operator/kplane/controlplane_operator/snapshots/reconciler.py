"""Reconciler of ControlPlaneSnapshot: writes the file, retries after failures, and deletes the file with its object."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any, Final

from kplane.api import ControlPlane, ControlPlaneSnapshot, ControlPlaneSnapshotStatus, DeletionPolicy, SnapshotPhase
from kplane.api.names import FINALIZER
from kplane.api.reasons import Reason
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import BackupFailed, OperatorError
from kplane.controlplane_operator.failures import Failures
from kplane.controlplane_operator.finalizers import add_finalizer, remove_finalizer
from kplane.controlplane_operator.snapshots.catalog import ArchiveName, CatalogEntry
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.locations import file_name, imported_from, location_of
from kplane.controlplane_operator.snapshots.saving import Saved, save_snapshot
from kplane.controlplane_operator.snapshots.source import Sources
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.conditions import with_condition
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialSnapshot, as_recorded
from kplane.controlplane_operator.tenant.identity import read_cluster_uid
from kplane.controlplane_operator.watch.backoff import KeyedBackoff, jittered
from kplane.controlplane_operator.watch.cache import Key, Object
from kplane.data import DataError
from kplane.pki.errors import PkiError
from kplane.provider import ProviderError, Result
from kplane.provider.logs import log_fields
from kplane.workloads import WorkloadsError

__all__ = ["ControlPlaneSnapshotReconciler"]

_log: Final = logging.getLogger(__name__)

_EXPECTED: Final = (OperatorError, DataError, PkiError, ProviderError, WorkloadsError, OSError, TimeoutError)
_TURN_SECONDS: Final = 3.0
_RESTORED_SECONDS: Final = 10.0
_FIRST_RETRY_SECONDS: Final = 10.0
_RETRY_SECONDS_AT_MOST: Final = 900.0
_NO_STORAGE: Final = (
    "the operator has no storage for snapshots; set etcd.backup.recipients of the chart, or flags --snapshot-recipient"
    " and --snapshot-volume of the operator. If they are set, see the operator's log"
)


class ControlPlaneSnapshotReconciler:
    """Reconciler that writes the file of each snapshot once."""

    def __init__(
        self, context: OperatorContext, *, sources: Sources, jobs: SnapshotJobs, storage: SnapshotStorage | None
    ) -> None:
        """`storage` is None if the operator has no storage for snapshots."""
        self.failures: Final = Failures(
            context, controller="controlplanesnapshot", store=context.stores.snapshots, written=PartialSnapshot
        )
        self._context = context
        self._sources = sources
        self._jobs = jobs
        self._storage = storage
        self._backoff: KeyedBackoff[str] = KeyedBackoff(
            first_seconds=_FIRST_RETRY_SECONDS, limit_seconds=_RETRY_SECONDS_AT_MOST
        )
        self._not_before: dict[str, float] = {}

    async def reconcile(self, key: Key) -> Result | None:
        """Start the job that writes a snapshot, or delete its file, and report the progress in the status."""
        obj = self._context.stores.snapshots.get(key)
        if obj is None:
            return None
        with log_fields(object=f"ControlPlaneSnapshot/{key[1]}"):
            if "deletionTimestamp" in obj["metadata"]:
                return await self._remove(obj)
            snapshot = ControlPlaneSnapshot.model_validate(obj)
            uid = snapshot.metadata.uid or ""
            if snapshot.status.phase is SnapshotPhase.COMPLETED or self._jobs.has(uid):
                await self.failures.over(key)
                return None
            if (location := imported_from(obj)) is not None:
                return await self._import(snapshot, location=location)
            if (rest := self._not_before.get(uid, 0.0) - asyncio.get_running_loop().time()) > 0:
                return Result(rest)
            try:
                return await self._begin(snapshot)
            except ConditionError as failure:
                await self._tell(snapshot, failure=failure, phase=SnapshotPhase.PENDING)
                self._context.metrics.condition_failed("controlplanesnapshot", reason=failure.reason)
                return None

    def _required(self) -> SnapshotStorage:
        # A deletion needs the storage too: a file may exist that only an operator with this storage can delete.
        if self._storage is None:
            raise BackupFailed(_NO_STORAGE)
        return self._storage

    async def _begin(self, snapshot: ControlPlaneSnapshot) -> Result | None:
        try:
            storage = self._required()
        except BackupFailed as error:
            raise ConditionError(Reason.NO_SNAPSHOT_STORAGE, str(error)) from None
        control_plane = self._control_plane(snapshot)
        stored = await add_finalizer(self._context.client, snapshot, store=self._context.stores.snapshots)
        if stored is not None:
            snapshot = ControlPlaneSnapshot.model_validate(stored)

        async def work() -> None:
            await self._save(snapshot, of=control_plane, storage=storage)

        if not self._jobs.start(snapshot.metadata.uid or "", of=control_plane.metadata.uid or "", work=work):
            return Result(jittered(_TURN_SECONDS))
        return None

    async def _import(self, snapshot: ControlPlaneSnapshot, *, location: str) -> Result | None:
        """Copy the status from the catalog. The file is never written, because the control plane has other data now."""
        uid = snapshot.metadata.uid or ""
        try:
            archive, entry = await self._entry(snapshot, location)
        except (BackupFailed, OSError) as error:
            failure = ConditionError(Reason.FILE_NOT_IMPORTED, f"failed to import {location}: {error}")
            self._context.metrics.condition_failed("controlplanesnapshot", reason=failure.reason)
            await self._tell(snapshot, failure=failure, phase=SnapshotPhase.PENDING)
            return Result(self._backoff.next(uid, reason="import"))
        stored = await add_finalizer(self._context.client, snapshot, store=self._context.stores.snapshots)
        if stored is not None:
            snapshot = ControlPlaneSnapshot.model_validate(stored)
        message = f"imported {archive.file}: {entry.keys} keys of revision {entry.revision}"
        conditions = with_condition(
            snapshot.status.conditions, of=snapshot, status="True", reason=Reason.IMPORTED, message=message
        )
        await self._write(
            snapshot, phase=SnapshotPhase.COMPLETED, location=location, conditions=conditions, **entry.recorded()
        )
        self._backoff.forget(uid)
        return None

    async def _entry(self, snapshot: ControlPlaneSnapshot, location: str) -> tuple[ArchiveName, CatalogEntry]:
        """Read the catalog's entry of a file.

        A user may have written the location, so the location is checked. Raises BackupFailed and OSError.
        """
        storage = self._required()
        archive = ArchiveName.read(storage.name_at(location))
        if archive is None or not storage.has_catalog:
            raise BackupFailed(f"{location} is not the file of a snapshot in a bucket or volume")
        entry = await storage.entry(archive)
        if entry.control_plane != snapshot.spec.control_plane_ref.name:
            raise BackupFailed(f"it is of control plane {entry.control_plane}")
        return archive, entry

    def _control_plane(self, snapshot: ControlPlaneSnapshot) -> ControlPlane:
        name = snapshot.spec.control_plane_ref.name
        obj = self._context.stores.control_planes.get(("", name))
        if obj is None:
            raise ConditionError(Reason.CONTROL_PLANE_NOT_FOUND, f"there is no ControlPlane {name}")
        control_plane = as_recorded(obj)
        if control_plane.spec.endpoint_ref is not None:
            raise ConditionError(
                Reason.NOT_RUN_BY_KPLANE, f"ControlPlane {name} has spec.endpointRef: kplane does not have its data"
            )
        if control_plane.status.endpoint is None or control_plane.deleting:
            raise ConditionError(
                Reason.CONTROL_PLANE_NOT_READY, f"ControlPlane {name} was not Ready yet, or is deleted"
            )
        return control_plane

    async def _save(self, snapshot: ControlPlaneSnapshot, *, of: ControlPlane, storage: SnapshotStorage) -> None:
        """Write the file of a snapshot, and report the result in the status. Raises only CancelledError."""
        uid = snapshot.metadata.uid or ""
        with log_fields(object=f"ControlPlaneSnapshot/{snapshot.name}"):
            try:
                saving = ConditionError(Reason.SAVING, f"the data of control plane {of.name} are being saved")
                await self._tell(snapshot, failure=saving, phase=SnapshotPhase.RUNNING)
                async with self._sources.open(of) as source:
                    saved = await save_snapshot(source, to=storage, name=file_name(snapshot))
                status = _completed_status(snapshot, of=of, saved=saved, location=storage.location(file_name(snapshot)))
                # The entry is written before the status: a snapshot with phase Completed must survive its management
                # cluster.
                archive = ArchiveName.read(file_name(snapshot))
                if archive is not None and storage.has_catalog:
                    recipients = [str(recipient) for recipient in storage.recipients]
                    entry = CatalogEntry.of(archive, status, control_plane=of.name, recipients=recipients)
                    await storage.describe(archive, entry)
                await self._write(snapshot, **{name: getattr(status, name) for name in type(status).model_fields})
                self._backoff.forget(uid)
            except _EXPECTED as error:
                await self._failed(snapshot, str(error) or "an answer took too long")
            except Exception:  # noqa: BLE001 - the snapshot is tried again
                _log.exception("failed to save control plane %s", of.name)
                await self._failed(snapshot, "the operator failed; report it, with the operator's log")

    async def _failed(self, snapshot: ControlPlaneSnapshot, why: str) -> None:
        uid = snapshot.metadata.uid or ""
        pause = self._backoff.next(uid)
        self._not_before[uid] = asyncio.get_running_loop().time() + pause
        _log.warning("failed to save control plane %s: %s", snapshot.spec.control_plane_ref.name, why)
        failure = ConditionError(Reason.SNAPSHOT_FAILED, why)
        self._context.metrics.condition_failed("controlplanesnapshot", reason=failure.reason)
        try:
            await self._tell(snapshot, failure=failure, phase=SnapshotPhase.FAILED)
        except ProviderError as error:
            _log.warning("failed to update the status of %s: %s", snapshot.name, error)
        self._context.triggers.snapshots.add(snapshot.name, seconds=pause)

    async def _tell(self, snapshot: ControlPlaneSnapshot, *, failure: ConditionError, phase: SnapshotPhase) -> None:
        conditions = with_condition(
            snapshot.status.conditions, of=snapshot, status="False", reason=failure.reason, message=failure.message
        )
        await self._write(snapshot, phase=phase, conditions=conditions)

    async def _write(self, snapshot: ControlPlaneSnapshot, **update: Any) -> None:
        status = ControlPlaneSnapshotStatus.model_validate(
            {**snapshot.status.model_dump(), "observed_generation": snapshot.metadata.generation, **update}
        )
        existing = self._context.stores.snapshots.get(("", snapshot.name))
        if existing is None or existing["metadata"]["uid"] != snapshot.metadata.uid:
            return
        current = ControlPlaneSnapshot.model_validate(existing)
        await self._context.status.write(self._context.stores.snapshots, current, status=status)

    async def _remove(self, obj: Object) -> Result | None:
        """Delete the file, then remove the finalizer of the object."""
        metadata = obj["metadata"]
        await self._jobs.cancel(metadata["uid"])
        if FINALIZER not in metadata.get("finalizers", ()):
            return None
        if self._is_restored(metadata["name"]):
            return Result(jittered(_RESTORED_SECONDS))
        snapshot = PartialSnapshot.of(obj)
        uid = metadata["uid"]
        try:
            await self._remove_file(snapshot, obj)
        except (BackupFailed, OSError) as error:
            conditions = with_condition(
                snapshot.status.conditions,
                of=snapshot,
                status="False",
                reason=Reason.SNAPSHOT_FAILED,
                message=f"failed to delete {file_name(snapshot)}: {error}",
            )
            status = snapshot.status.model_copy(update={"conditions": conditions})
            await self._context.status.write(self._context.stores.snapshots, snapshot, status=status)
            return Result(self._backoff.next(uid, reason="removal"))
        await remove_finalizer(self._context.client, snapshot, store=self._context.stores.snapshots)
        self._backoff.forget(uid)
        self._not_before.pop(uid, None)
        return None

    async def _remove_file(self, snapshot: PartialSnapshot, obj: Object) -> None:
        """Delete the file with its entry in the catalog, or keep both and hide the file from further imports.

        Raises BackupFailed, OSError and ProviderError.
        """
        location, recorded_location = location_of(obj), snapshot.status.location
        is_retained = (obj.get("spec") or {}).get("deletionPolicy") == DeletionPolicy.RETAIN
        # Without a location in the status, the entry of an imported file was never valid.
        if location is not None and (is_retained or recorded_location is None):
            await self._hide(location)
            return
        storage = self._required()
        if location is None:
            await storage.remove(file_name(snapshot))
            return
        others = (other for other in self._context.stores.snapshots if "deletionTimestamp" not in other["metadata"])
        if not any(location_of(other) == location for other in others):
            await storage.remove(storage.name_at(location))

    async def _hide(self, location: str) -> None:
        """Hide the file from the next import. A file in another kind of storage needs no marker."""
        storage = self._storage
        if storage is None or not storage.has_catalog:
            return
        try:
            archive = ArchiveName.read(storage.name_at(location))
        except BackupFailed:
            return
        if archive is not None:
            await storage.hide(archive, cluster=await read_cluster_uid(self._context.client))

    def _is_restored(self, name: str) -> bool:
        """Return whether a control plane is being restored from the snapshot, and so needs the file."""
        candidates = self._context.stores.control_planes.by("snapshot", name)
        return any(
            (candidate.get("status") or {}).get("endpoint") is None and "deletionTimestamp" not in candidate["metadata"]
            for candidate in candidates
        )


def _completed_status(
    snapshot: ControlPlaneSnapshot, *, of: ControlPlane, saved: Saved, location: str
) -> ControlPlaneSnapshotStatus:
    archived = saved.archived
    return ControlPlaneSnapshotStatus(
        phase=SnapshotPhase.COMPLETED,
        completion_time=datetime.now(UTC).replace(microsecond=0),
        control_plane_uid=of.metadata.uid,
        mode=of.home.mode,
        data_store=of.home.data_store,
        revision=archived.revision,
        keys=archived.digest.count,
        bytes=archived.size,
        sha256=saved.sha256,
        service_cidr=of.status.service_cidr,
        kubernetes_version=of.status.version,
        location=location,
        observed_generation=snapshot.metadata.generation,
        conditions=with_condition(
            snapshot.status.conditions,
            of=snapshot,
            status="True",
            reason=Reason.SAVED,
            message=f"saved {archived.digest.count} keys of revision {archived.revision}",
        ),
    )
