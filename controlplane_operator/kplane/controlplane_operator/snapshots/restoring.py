"""Restore of a snapshot into a new control plane, and clones of other control planes.

`data.copying` writes the data: completely, or from the start again. Each write compares the owner key of the prefix.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NoReturn

from kplane.api import ControlPlane, ControlPlaneMode, RestoreStatus, SourceSpec
from kplane.api.reasons import Reason
from kplane.controlplane_operator.backup.archive import identities
from kplane.controlplane_operator.class_policy import class_in_force
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.credentials.store import TenantKeys
from kplane.controlplane_operator.errors import BackupFailed, OperatorError
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.origins import LivingOrigin, Origin, SavedOrigin
from kplane.controlplane_operator.snapshots.source import Sources
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.controlplane_operator.status.partial import PartialSnapshot, as_recorded
from kplane.data import (
    Client,
    Cloning,
    Compacted,
    Credentials,
    DataError,
    HeldCredentials,
    NotOwned,
    Owner,
    Pair,
    RevisionTooFar,
    ValueEncrypted,
    check_room,
    claim,
    digest,
    discard_unfinished,
    is_copy,
    raise_revision,
    write_copy,
)
from kplane.pki.entries import data_of
from kplane.pki.errors import PkiError
from kplane.provider import NotFound, ProviderError
from kplane.provider.client.resources import SECRETS

__all__ = ["SnapshotRestorer"]

_log: Final = logging.getLogger(__name__)

_EXPECTED: Final = (OperatorError, DataError, PkiError, ProviderError, OSError, TimeoutError)
_CALL_SECONDS: Final = 30.0
_MOST_COMPACTED: Final = 3
"""Number of consecutive attempts that etcd outruns by a compaction, after which no further attempt starts."""
_IDENTITY: Final = "identity"
_ENCRYPTED: Final = (
    ", and a clone has to read all objects: restore a ControlPlaneSnapshot without clone, or remove encryptedResources"
    " from its class and write these objects anew"
)


class SnapshotRestorer:
    """Restores or clones of control planes. Repeated calls for a control plane start one job."""

    def __init__(
        self, context: OperatorContext, *, jobs: SnapshotJobs, storage: SnapshotStorage | None, sources: Sources
    ) -> None:
        """`storage` is None if the operator has no storage for snapshots."""
        self._context = context
        self._keys = TenantKeys(context)
        self._jobs = jobs
        self._storage = storage
        self._sources = sources
        self._failed: dict[str, tuple[Reason, str]] = {}
        """By uid of a control plane: the reason and message of the last failed attempt, until an attempt succeeds."""
        self._compacted: dict[str, int] = {}
        """By uid: the number of consecutive attempts during which etcd compacted the revision too early."""
        self._reported: set[str] = set()
        """Uids of control planes whose last failure was reported. Their next reconcile starts the next attempt."""
        self._read: dict[str, dict[str, bytes]] = {}
        """By uid of a control plane: the keys from the snapshot, until they are written."""
        self._restored: set[str] = set()
        """Uids of control planes whose etcd has all restored data."""

    async def restore_keys(self, control_plane: ControlPlane) -> None:
        """Create the Secret of the authorities from the snapshot. A clone gets new keys instead.

        Raises ConditionError until the keys were read.
        """
        uid = control_plane.metadata.uid or ""
        if _source(control_plane).clone or await self._keys.exist(control_plane):
            return
        if (keys := self._read.get(uid)) is None:
            self._begin(control_plane, what="keys", work=lambda: self._read_keys(control_plane))
        # Written here and not in the job, so that the write cannot coincide with the removal of the control plane.
        await self._keys.restore(control_plane, data=keys)
        del self._read[uid]

    async def restore_data(
        self, control_plane: ControlPlane, *, endpoint: str, credentials: Credentials | HeldCredentials, prefix: str
    ) -> None:
        """Restore all data below the prefix of the control plane. Raises ConditionError until all data are written."""
        uid = control_plane.metadata.uid or ""
        if not self._jobs.has(uid):
            try:
                async with Client(endpoint, credentials=credentials, timeout_seconds=_CALL_SECONDS) as client:
                    await claim(client, prefix, owner=_owner(control_plane))
                    done = await is_copy(client, prefix, owner=_owner(control_plane))
            except NotOwned as error:
                raise _failure(control_plane, str(error)) from error
            except DataError as error:
                raise ConditionError(Reason.ETCD_UNAVAILABLE, str(error)) from error
            if done:
                self._succeeded(uid)
                self._restored.add(uid)
                return
            if uid in self._restored:
                # The etcd begins at revision 1 now. Clients would take new revisions for old ones.
                raise _failure(control_plane, "its etcd lost the restored data; delete the control plane first")

        async def work() -> None:
            async with Client(endpoint, credentials=credentials, timeout_seconds=_CALL_SECONDS) as client:
                keys, removed = await self._write(control_plane, client=client, prefix=prefix)
            done = "Cloned" if _source(control_plane).clone else "Restored"
            message = f"{done.lower()} {keys} keys of {_origin_name(control_plane)}"
            if removed:
                message += f", without {removed} references to owners that a clone leaves out"
            self._context.events.record(control_plane, reason=done, message=message)

        self._begin(control_plane, what="data", work=work)

    def has_restored(self, control_plane: ControlPlane) -> bool:
        """Return whether `restore_data` found all data in the etcd."""
        return control_plane.metadata.uid in self._restored

    def forget(self, uid: str) -> None:
        """See `Restorer.forget`."""
        self._succeeded(uid)
        self._read.pop(uid, None)
        self._reported.discard(uid)
        self._restored.discard(uid)

    def _begin(self, control_plane: ControlPlane, *, what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
        """Start a job for the work, unless a job of the control plane is running or too many attempts were outrun.

        Raises ConditionError with the progress, or with the reason why the last job failed.
        """
        uid = control_plane.metadata.uid or ""
        act = "cloning" if _source(control_plane).clone else "restoring"
        failure, message = self._failed.get(uid), f"{act} the {what} of {_origin_name(control_plane)}"
        if failure is not None and uid not in self._reported:
            self._reported.add(uid)
        elif self._compacted.get(uid, 0) >= _MOST_COMPACTED:
            # Each attempt reads all data, and slows down an etcd that is too slow already.
            pass
        elif not self._jobs.has(uid) and not self._jobs.start(uid, of=uid, work=lambda: self._run(control_plane, work)):
            message = "other control planes are being restored or cloned; waiting for them"
        if failure is not None:
            raise _failure(control_plane, failure[1], reason=failure[0])
        raise ConditionError(Reason.PROVISIONING, message)

    async def _run(self, control_plane: ControlPlane, work: Callable[[], Awaitable[None]]) -> None:
        uid = control_plane.metadata.uid or ""
        try:
            await work()
            self._succeeded(uid)
        except _EXPECTED as error:
            self._compacted[uid] = self._compacted.get(uid, 0) + 1 if isinstance(error, Compacted) else 0
            reason, message = _told(error, attempts=self._compacted[uid])
            self._failed[uid] = reason, message
            _log.warning("failed to restore control plane %s: %s", control_plane.name, message)
        except Exception:  # noqa: BLE001 - it is tried again
            self._failed[uid] = Reason.RESTORE_FAILED, "the operator failed; report it, with the operator's log"
            _log.exception("failed to restore control plane %s", control_plane.name)
        self._reported.discard(uid)
        self._context.triggers.control_planes.add(control_plane.name)

    def _succeeded(self, uid: str) -> None:
        self._failed.pop(uid, None)
        self._compacted.pop(uid, None)

    async def _read_keys(self, control_plane: ControlPlane) -> None:
        origin = await self._saved(control_plane)
        # Read to the end: only then the SHA-256 proves that the operator wrote this file.
        async for _ in origin.pairs():
            pass
        if origin.archived is not None:
            self._read[control_plane.metadata.uid or ""] = _keys_in(origin.archived.header)

    async def _write(self, control_plane: ControlPlane, *, client: Client, prefix: str) -> tuple[int, int]:
        """Write all data and mark the copy as complete in etcd.

        Returns the number of keys, and the number of references to owners that the clone leaves out.
        """
        restore = _restore(control_plane)
        if restore.begins_at is not None:
            await raise_revision(client, above=restore.begins_at - 1)
            # Clients of the former control plane may ask for earlier revisions, at which this etcd lacks the data.
            await client.compact(restore.begins_at)
        removed = 0
        if _source(control_plane).clone:
            removed = await self._clone(control_plane, client=client, prefix=prefix)
        else:
            await self._restore(control_plane, client=client, prefix=prefix)
        return (await digest(client, prefix)).count, removed

    async def _restore(self, control_plane: ControlPlane, *, client: Client, prefix: str) -> None:
        origin = await self._saved(control_plane)
        saved = self._context.stores.snapshots.get(("", _restore(control_plane).snapshot or ""))
        size = (PartialSnapshot.of(saved).status.bytes or 0) if saved is not None else 0
        await self._check_size(control_plane, client=client, prefix=prefix, size=size)

        async def check() -> None:
            if origin.archived is None or await digest(client, prefix) != origin.archived.digest:
                raise BackupFailed("the data in etcd are not those of the snapshot")

        await _written(client, origin.pairs(), prefix, control_plane=control_plane, check=check)

    async def _clone(self, control_plane: ControlPlane, *, client: Client, prefix: str) -> int:
        """Write the clone. Returns the number of references to owners that were removed."""
        former, uid = _restore(control_plane).control_plane_uid, control_plane.metadata.uid
        cloning = Cloning(nodes=_source(control_plane).nodes, replaced=(former, uid) if former and uid else None)
        async with self._origin(control_plane) as origin:
            size = 0
            # In threads, because a large page would block the event loop for too long.
            async for pairs in origin.pairs():
                size += sum(len(key) + len(value) for key, value in pairs)
                await asyncio.to_thread(cloning.learn, pairs)
            await self._check_size(control_plane, client=client, prefix=prefix, size=size)
            await _written(client, _cloned(origin, cloning), prefix, control_plane=control_plane)
        return cloning.references_removed

    async def _check_size(self, control_plane: ControlPlane, *, client: Client, prefix: str, size: int) -> None:
        """Raise BackupFailed or NoRoom if `size` bytes exceed the quota of the class or the room in etcd."""
        chosen_class = class_in_force(control_plane, classes=self._context.stores.classes).chosen
        virtual = control_plane.home.mode is ControlPlaneMode.VIRTUAL
        quota = chosen_class.spec.storage_quota_bytes if virtual and chosen_class is not None else None
        if quota is not None and size > quota:
            raise BackupFailed(
                f"it has {size} bytes, and its class allows {quota} in the shared etcd: raise"
                " spec.virtual.storage.quota of the class"
            )
        # The remains of an interrupted attempt would otherwise count twice.
        await discard_unfinished(client, prefix, owner=_owner(control_plane))
        await check_room(client, size=size)

    @contextlib.asynccontextmanager
    async def _origin(self, control_plane: ControlPlane) -> AsyncIterator[Origin]:
        reference = _source(control_plane).control_plane_ref
        if reference is None:
            yield await self._saved(control_plane)
            return
        obj = self._context.stores.control_planes.get(("", reference.name))
        if obj is None or obj["metadata"]["uid"] != _restore(control_plane).control_plane_uid:
            raise BackupFailed(f"control plane {reference.name} is gone; create a control plane with another source")
        async with self._sources.open(as_recorded(obj)) as source:
            yield LivingOrigin(source)

    async def _saved(self, control_plane: ControlPlane) -> SavedOrigin:
        reference = _source(control_plane).identity_secret_ref
        if self._storage is None:
            raise BackupFailed("the operator has no storage for snapshots: set etcd.backup.recipients")
        name = reference.name if reference is not None else ""
        try:
            secret = await self._context.client.get(SECRETS, name, namespace=self._context.namespace)
        except NotFound:
            raise BackupFailed(f"there is no Secret {self._context.namespace}/{name} with the private key") from None
        text = data_of(secret).get(_IDENTITY)
        if text is None:
            raise BackupFailed(f"Secret {self._context.namespace}/{name} has no key {_IDENTITY}")
        keys = identities(text.decode(errors="replace"))
        return SavedOrigin(self._storage, _restore(control_plane), keys=keys)


async def _cloned(origin: Origin, cloning: Cloning) -> AsyncIterator[Iterable[Pair]]:
    async for pairs in origin.pairs():
        yield await asyncio.to_thread(cloning.copied, pairs)


async def _written(
    client: Client,
    groups: AsyncIterator[Iterable[Pair]],
    prefix: str,
    *,
    control_plane: ControlPlane,
    check: Callable[[], Awaitable[None]] | None = None,
) -> None:
    if not await write_copy(client, groups, prefix, owner=_owner(control_plane), check=check):
        raise BackupFailed(f"there are other data below {prefix} already; use another name or clusterPath")


def _source(control_plane: ControlPlane) -> SourceSpec:
    if control_plane.spec.source is None:
        raise AssertionError(f"control plane {control_plane.name} has no source")
    return control_plane.spec.source


def _restore(control_plane: ControlPlane) -> RestoreStatus:
    return control_plane.status.restore or RestoreStatus()


def _owner(control_plane: ControlPlane) -> Owner:
    return Owner(control_plane.metadata.uid or "", control_plane.name)


def _origin_name(control_plane: ControlPlane) -> str:
    source = _source(control_plane)
    if source.control_plane_ref is not None:
        return f"control plane {source.control_plane_ref.name}"
    return f"snapshot {_restore(control_plane).snapshot}"


def _told(error: BaseException, *, attempts: int) -> tuple[Reason, str]:
    """Return the reason and message for the error of a failed attempt, with a remedy.

    `attempts` is the number of consecutive attempts that etcd outran by a compaction.
    """
    match error:
        case ValueEncrypted():
            return Reason.SOURCE_ENCRYPTED, f"{error}{_ENCRYPTED}"
        case RevisionTooFar():
            return Reason.RESTORE_FAILED, f"{error}; restore the snapshot with spec.mode Dedicated"
        case Compacted():
            stopped = "; no attempt follows" if attempts >= _MOST_COMPACTED else ""
            return Reason.RESTORE_FAILED, (
                f"{error}: {attempts} times, etcd compacted the revision before all data were read, and it keeps one"
                f" for 5 to 10 minutes{stopped}. Give etcd and the operator more processor time, then delete this"
                " control plane and create it again. A clone of a ControlPlaneSnapshot reads less from etcd."
            )
        case _:
            return Reason.RESTORE_FAILED, str(error) or "an answer took too long"


def _failure(control_plane: ControlPlane, why: str, *, reason: Reason = Reason.RESTORE_FAILED) -> ConditionError:
    act = "clone" if _source(control_plane).clone else "restore"
    return ConditionError(reason, f"failed to {act} {_origin_name(control_plane)}: {why}")


def _keys_in(header: Mapping[str, Any]) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(content) for name, content in header["keys"].items()}
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise BackupFailed("it has no keys of a control plane") from error
