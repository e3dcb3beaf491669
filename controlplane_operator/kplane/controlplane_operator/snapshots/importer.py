"""Import of ControlPlaneSnapshots from the catalog, in a management cluster that lacks the objects.

The rules are those of Velero's BackupSyncController: an entry without an object gets an object, and an imported object
without its file is deleted. The importer deletes no other object, and no file of a snapshot.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from kplane.api import DeletionPolicy, SnapshotPhase
from kplane.api.names import (
    CONTROL_PLANE_LABEL,
    FINALIZER,
    IMPORTED_FROM_ANNOTATION,
    label_value,
)
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import BackupFailed, FileRefused
from kplane.controlplane_operator.kinds import CONTROL_PLANE_SNAPSHOTS
from kplane.controlplane_operator.snapshots.catalog import ArchiveName, CatalogEntry, hidden_name, is_hidden_name
from kplane.controlplane_operator.snapshots.locations import file_name, imported_from, location_of, possible_names
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.partial import PartialSnapshot
from kplane.controlplane_operator.tenant.identity import read_cluster_uid
from kplane.controlplane_operator.watch.backoff import jittered, retry_backoff
from kplane.controlplane_operator.watch.cache import Object, key_of
from kplane.provider import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, ProviderError

__all__ = ["SnapshotImporter"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 300.0
_FIRST_RETRY_SECONDS: Final = 10.0


class SnapshotImporter:
    """Importer that compares the storage with the objects at the start of the operator, and then every five minutes."""

    def __init__(self, context: OperatorContext, *, storage: SnapshotStorage) -> None:
        self._context = context
        self._storage = storage
        self._refused: dict[str, str] = {}
        """Invalid entries: by name of the entry, the text that the listing had for the file when the entry was read."""
        self._recorded: dict[str, int] = {}
        """Highest revisions that entries are known to have, by uid of the snapshot that wrote the file."""
        self._missing: set[str] = set()
        """Files of imported objects that the last listing lacked."""

    async def run(self) -> None:
        """Compare until cancelled; return at once if the storage has no catalog. The caches must be filled before."""
        backoff = retry_backoff(first_seconds=_FIRST_RETRY_SECONDS, limit_seconds=_PERIOD_SECONDS)
        while self._storage.has_catalog:
            try:
                await self.sync()
                backoff.reset()
                pause = jittered(_PERIOD_SECONDS)
            except (BackupFailed, ProviderError, OSError, TimeoutError) as error:
                pause = backoff.next_delay()
                _log.warning("failed to compare snapshots with their storage: %s; trying again", error)
            except Exception:  # noqa: BLE001 - it is tried again
                pause = backoff.next_delay()
                _log.exception("failed to compare snapshots with their storage")
            await asyncio.sleep(pause)

    async def sync(self) -> None:
        """Compare once. Raises BackupFailed, OSError and ProviderError; changes made before the error remain."""
        # Read the cache before the listing: the cache still has the object of a file that is written or hidden during
        # the listing.
        imported = [snapshot for snapshot in self._context.stores.snapshots if imported_from(snapshot) is not None]
        objects = self._by_location()
        files = await self._storage.files()
        archives = [archive for file in files if (archive := ArchiveName.read(file)) is not None]
        if archives:
            await self._delete_lost(imported, files)
        else:
            # Without any archive, the volume may not be mounted: its directory is empty then.
            self._missing.clear()
        hidden = await self._hidden(files, archives)
        objects |= self._by_location()
        for archive in archives:
            if archive.entry not in files:
                await self._describe(archive)
            elif (snapshot := objects.get(archive.file)) is not None:
                await self._record_highest_revision(archive, snapshot)
            elif archive.uid not in hidden:
                await self._import(archive, content=files[archive.entry])
        self._refused = {name: content for name, content in self._refused.items() if files.get(name) == content}

    def _by_location(self) -> dict[str, Object]:
        """Return the objects by the location of the file that each has or will have."""
        return {
            location_of(snapshot) or file_name(PartialSnapshot.of(snapshot)): snapshot
            for snapshot in self._context.stores.snapshots
        }

    async def _delete_lost(self, imported: list[Object], files: Mapping[str, str]) -> None:
        """Delete imported objects whose files another management cluster has deleted.

        The file must be missing from two listings in a row, because a listing may be incomplete.
        """
        missing, self._missing = self._missing, set()
        for snapshot in imported:
            metadata, location = snapshot["metadata"], (snapshot.get("status") or {}).get("location")
            if location is None or "deletionTimestamp" in metadata or location in files:
                continue
            if location not in missing:
                self._missing.add(location)
                continue
            _log.warning("ControlPlaneSnapshot %s goes: its file %s is not in the storage", metadata["name"], location)
            try:
                await self._context.client.delete(CONTROL_PLANE_SNAPSHOTS, metadata["name"], uid=metadata["uid"])
            except (NotFound, Conflict):
                continue

    async def _hidden(self, files: Mapping[str, str], archives: list[ArchiveName]) -> set[str]:
        """Return the uids of snapshots that users deleted in this cluster. Removes the markers whose files are gone."""
        cluster, uids = await read_cluster_uid(self._context.client), {archive.uid for archive in archives}
        hidden = {uid for file in files if (uid := is_hidden_name(file, cluster=cluster)) is not None}
        for uid in hidden - uids:
            await self._storage.remove(hidden_name(ArchiveName("", uid), cluster=cluster))
        return hidden

    async def _describe(self, archive: ArchiveName) -> None:
        """Write the missing entry of a file from an earlier version, if this cluster has the object of the file."""
        snapshot = self._context.stores.snapshots.get(("", archive.name))
        if snapshot is None or "deletionTimestamp" in snapshot["metadata"] or location_of(snapshot) != archive.file:
            return
        status = PartialSnapshot.of(snapshot).status
        if status.phase is not SnapshotPhase.COMPLETED or snapshot["metadata"]["uid"] != archive.uid:
            return
        try:
            # The recipients of the file are not recorded anywhere.
            entry = CatalogEntry.of(
                archive, status, control_plane=snapshot["spec"]["controlPlaneRef"]["name"], recipients=[]
            )
            # No await since the read of the cache, so the deletion of the file cannot have begun.
            await self._storage.describe(archive, entry)
        except BackupFailed as error:
            _log.warning("%s", error)

    async def _record_highest_revision(self, archive: ArchiveName, snapshot: Object) -> None:
        """Write the highest revision of the control plane into the entry. Its object has it since a deletion."""
        highest = PartialSnapshot.of(snapshot).status.highest_revision
        if highest is None or self._recorded.get(archive.uid, -1) >= highest:
            return
        try:
            entry = await self._storage.entry(archive)
            current = self._context.stores.snapshots.get(key_of(snapshot))
            if current is None or "deletionTimestamp" in current["metadata"] or location_of(current) != archive.file:
                return
            if (entry.highest_revision or 0) < highest:
                status = PartialSnapshot.of(current).status
                described = CatalogEntry.of(
                    archive, status, control_plane=entry.control_plane, recipients=entry.recipients
                )
                # No await since the read of the cache, so the deletion of the file cannot have begun.
                await self._storage.describe(archive, described)
        except (BackupFailed, OSError) as error:
            _log.warning("failed to record the highest revision of snapshot %s: %s", archive.file, error)
            return
        self._recorded[archive.uid] = highest

    async def _import(self, archive: ArchiveName, *, content: str) -> None:
        """Create the object of an entry. The reconciler copies the status from the entry."""
        if self._refused.get(archive.entry) == content:
            return
        try:
            # The deletion of a snapshot removes the entry before the object. So an object that a user deleted after the
            # listing has no entry any more.
            entry = await self._storage.entry(archive)
        except (BackupFailed, OSError) as error:
            if isinstance(error, FileRefused):
                self._refused[archive.entry] = content
            _log.warning("failed to import snapshot %s: %s", archive.file, error)
            return
        body = {
            "metadata": {
                "labels": {CONTROL_PLANE_LABEL: label_value(entry.control_plane)},
                "annotations": {IMPORTED_FROM_ANNOTATION: archive.file},
                "finalizers": [FINALIZER],
            },
            # The other management cluster may still run, and need the file.
            "spec": {"controlPlaneRef": {"name": entry.control_plane}, "deletionPolicy": DeletionPolicy.RETAIN},
        }
        for name in possible_names(archive.name, uid=archive.uid):
            try:
                await self._context.client.create(
                    CONTROL_PLANE_SNAPSHOTS, {**body, "metadata": {**body["metadata"], "name": name}}
                )
            except AlreadyExists:
                continue
            except (Invalid, Forbidden) as error:
                # A policy of this cluster may reject the object, for example. Other snapshots are imported
                # nevertheless.
                self._refused[archive.entry] = content
                _log.warning("failed to import snapshot %s: %s", archive.file, error)
                return
            _log.info("imported snapshot %s as ControlPlaneSnapshot %s", archive.file, name)
            return
        self._refused[archive.entry] = content
        _log.warning("failed to import snapshot %s: other snapshots have its names; delete one of them", archive.file)
