"""Makes ControlPlaneSnapshots again from the catalogue, in a management cluster that does not have them.

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
from kplane.controlplane_operator.watch.cache import Object
from kplane.provider import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, ProviderError

__all__ = ["SnapshotImporter"]

_log: Final = logging.getLogger(__name__)

_PERIOD_SECONDS: Final = 300.0
_FIRST_RETRY_SECONDS: Final = 10.0


class SnapshotImporter:
    """Compares the storage with the objects: at the start of the operator, and every five minutes."""

    def __init__(self, context: OperatorContext, *, storage: SnapshotStorage) -> None:
        self._context = context
        self._storage = storage
        self._refused: dict[str, str] = {}
        """By name of an entry that is not valid: its content when it was read, as the listing tells it."""
        self._missing: set[str] = set()
        """Files of imported objects that the last listing did not have."""

    async def run(self) -> None:
        """Work until cancelled. The caches have to be filled."""
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
        """Compare once. Raises BackupFailed, OSError and ProviderError; what was done until then stays."""
        # Before the listing: a file that is written or hidden meanwhile is in none, and its object is known.
        imported = [each for each in self._context.stores.snapshots if imported_from(each) is not None]
        known = self._known()
        files = await self._storage.files()
        archives = [archive for file in files if (archive := ArchiveName.read(file)) is not None]
        if archives:
            await self._delete_lost(imported, files)
        else:
            # Such as a volume that is not mounted: its directory is empty.
            self._missing.clear()
        hidden = await self._hidden(files, archives)
        known |= self._known()
        for archive in archives:
            if archive.entry not in files:
                await self._describe(archive)
            elif archive.file not in known and archive.uid not in hidden:
                await self._import(archive, content=files[archive.entry])
        self._refused = {name: content for name, content in self._refused.items() if files.get(name) == content}

    def _known(self) -> set[str]:
        """Return the locations of files that objects have, or are about to have."""
        known = set()
        for each in self._context.stores.snapshots:
            known.add(location_of(each) or file_name(PartialSnapshot.of(each)))
        return known

    async def _delete_lost(self, imported: list[Object], files: Mapping[str, str]) -> None:
        """Delete imported objects whose files are gone: another management cluster deleted its snapshots.

        Two listings in a row have to lack a file, because one may be incomplete.
        """
        missing, self._missing = self._missing, set()
        for each in imported:
            metadata, location = each["metadata"], (each.get("status") or {}).get("location")
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
        """Return the uids of snapshots that users deleted here, and forget those whose files are gone."""
        cluster, uids = await read_cluster_uid(self._context.client), {archive.uid for archive in archives}
        hidden = {uid for file in files if (uid := is_hidden_name(file, cluster=cluster)) is not None}
        for uid in hidden - uids:
            await self._storage.remove(hidden_name(ArchiveName("", uid), cluster=cluster))
        return hidden

    async def _describe(self, archive: ArchiveName) -> None:
        """Write the entry of a file that an earlier version wrote, if its object is here."""
        found = self._context.stores.snapshots.get(("", archive.name))
        if found is None or "deletionTimestamp" in found["metadata"] or location_of(found) != archive.file:
            return
        status = PartialSnapshot.of(found).status
        if status.phase is not SnapshotPhase.COMPLETED or found["metadata"]["uid"] != archive.uid:
            return
        try:
            # Whose keys open the file is not known any more.
            entry = CatalogEntry.of(
                archive, status, control_plane=found["spec"]["controlPlaneRef"]["name"], recipients=[]
            )
            # Nothing is awaited since the look into the cache, so the file is not about to be deleted.
            await self._storage.describe(archive, entry)
        except BackupFailed as error:
            _log.warning("%s", error)

    async def _import(self, archive: ArchiveName, *, content: str) -> None:
        """Make the object of an entry. The reconciler takes its status from the entry."""
        if self._refused.get(archive.entry) == content:
            return
        try:
            # An entry is deleted before its object goes. So an object that a user deleted since the listing has none.
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
            # The other management cluster may be alive, and need the file.
            "spec": {"controlPlaneRef": {"name": entry.control_plane}, "deletionPolicy": DeletionPolicy.RETAIN},
        }
        for name in possible_names(archive.name, uid=archive.uid):
            try:
                created = await self._context.client.create(
                    CONTROL_PLANE_SNAPSHOTS, {**body, "metadata": {**body["metadata"], "name": name}}
                )
            except AlreadyExists:
                continue
            except (Invalid, Forbidden) as error:
                # Such as a policy of this cluster. It keeps no other snapshot out.
                self._refused[archive.entry] = content
                _log.warning("failed to import snapshot %s: %s", archive.file, error)
                return
            self._context.stores.snapshots.apply(created)
            _log.info("imported snapshot %s as ControlPlaneSnapshot %s", archive.file, name)
            return
        self._refused[archive.entry] = content
        _log.warning("failed to import snapshot %s: other snapshots have its names; delete one of them", archive.file)
