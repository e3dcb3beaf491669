"""Restores keys and data of a snapshot into a new control plane.

A key in its etcd, outside of the prefix of the API server, says how far the data are. Each transaction compares it: the
token of the present attempt, by which an earlier one writes nothing more, or that all data are there.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NoReturn

from kplane.api import ControlPlane
from kplane.controlplane_operator.backup.archive import identities
from kplane.controlplane_operator.context import OperatorContext
from kplane.controlplane_operator.errors import BackupFailed, OperatorError
from kplane.controlplane_operator.pki.secrets import data_of
from kplane.controlplane_operator.pki.store import TenantKeys
from kplane.controlplane_operator.reasons import Reason
from kplane.controlplane_operator.snapshots.jobs import SnapshotJobs
from kplane.controlplane_operator.snapshots.opening import OpenedSnapshot
from kplane.controlplane_operator.snapshots.source import DEDICATED_PREFIX
from kplane.controlplane_operator.snapshots.storage import SnapshotStorage
from kplane.controlplane_operator.status.errors import ConditionError
from kplane.data import (
    Absent,
    Client,
    Condition,
    DataError,
    DeleteRange,
    Empty,
    Equals,
    HeldCredentials,
    Put,
    digest,
    prefix,
    write_archived,
)
from kplane.provider import NotFound, ProviderError
from kplane.provider.client.resources import SECRETS

__all__ = ["SnapshotRestorer"]

_log: Final = logging.getLogger(__name__)

_EXPECTED: Final = (OperatorError, DataError, ProviderError, OSError, TimeoutError)
_STATE: Final = b"/kplane.dev/restore"
_DONE: Final = b"done "
_CALL_SECONDS: Final = 30.0
_IDENTITY: Final = "identity"


class SnapshotRestorer:
    """Restores a control plane by one job, however often it is asked."""

    def __init__(self, context: OperatorContext, *, jobs: SnapshotJobs, storage: SnapshotStorage | None) -> None:
        self._context = context
        self._keys = TenantKeys(context)
        self._jobs = jobs
        self._storage = storage
        self._failed: dict[str, str] = {}
        """By uid of a control plane: why the last attempt failed. It stays until one succeeds."""
        self._reported: set[str] = set()
        """Uids of control planes whose last failure a reconcile has seen: the next one begins the next attempt."""
        self._read: dict[str, dict[str, bytes]] = {}
        """By uid of a control plane: its keys, until they are written."""
        self._restored: set[str] = set()
        """Uids of control planes whose data are in their etcd."""

    async def restore_keys(self, control_plane: ControlPlane) -> None:
        """Have the Secret of the authorities be that of the snapshot."""
        uid = control_plane.metadata.uid or ""
        if await self._keys.exist(control_plane):
            return
        if (found := self._read.get(uid)) is None:
            self._begin(control_plane, what="keys", work=lambda: self._read_keys(control_plane))
        # Not by the job: what is written must not meet the removal of the control plane.
        await self._keys.restore(control_plane, data=found)
        del self._read[uid]

    async def restore_data(self, control_plane: ControlPlane, *, endpoint: str, credentials: HeldCredentials) -> None:
        """Have all data of the snapshot be in this etcd. Raises ConditionError once more when they are."""
        uid = control_plane.metadata.uid or ""
        if not self._jobs.has(uid):
            client = Client(endpoint, credentials=credentials, timeout_seconds=_CALL_SECONDS)
            try:
                async with client:
                    found = await client.get(_STATE)
            except DataError as error:
                raise ConditionError(Reason.PROVISIONING, str(error)) from error
            if found is not None and found.value.startswith(_DONE):
                self._failed.pop(uid, None)
                if found.value.split()[1:2] != [uid.encode()]:
                    raise _failure(control_plane, "the etcd has the data of an earlier restore; use another name")
                if uid not in self._restored:
                    self._restored.add(uid)
                    raise ConditionError(Reason.PROVISIONING, "the data are restored; etcd restarts")
                return
            if uid in self._restored:
                # It begins at revision 1 now, which clients would take for the past.
                raise _failure(control_plane, "its etcd lost the restored data; delete the control plane first")

        async def work() -> None:
            async with Client(endpoint, credentials=credentials, timeout_seconds=_CALL_SECONDS) as client:
                keys = await self._write(control_plane, client=client)
            self._context.events.record(
                control_plane, reason="Restored", message=f"restored {keys} keys of snapshot {_name(control_plane)}"
            )

        self._begin(control_plane, what="data", work=work)

    def has_restored(self, control_plane: ControlPlane) -> bool:
        """Tell whether `restore_data` found all data in the etcd."""
        return control_plane.metadata.uid in self._restored

    def _begin(self, control_plane: ControlPlane, *, what: str, work: Callable[[], Awaitable[None]]) -> NoReturn:
        """Have a job do the work, unless it runs. Raises ConditionError that says so, or why the last job failed."""
        uid = control_plane.metadata.uid or ""
        why, said = self._failed.get(uid), f"restoring the {what} of snapshot {_name(control_plane)}"
        if why is not None and uid not in self._reported:
            self._reported.add(uid)
        elif not self._jobs.has(uid) and not self._jobs.start(uid, of=uid, work=lambda: self._run(control_plane, work)):
            said = "other snapshots are being restored; waiting for them"
        raise _failure(control_plane, why) if why is not None else ConditionError(Reason.PROVISIONING, said)

    async def _run(self, control_plane: ControlPlane, work: Callable[[], Awaitable[None]]) -> None:
        uid = control_plane.metadata.uid or ""
        try:
            await work()
            self._failed.pop(uid, None)
        except _EXPECTED as error:
            self._failed[uid] = str(error) or "an answer took too long"
            _log.warning("failed to restore control plane %s: %s", control_plane.name, error)
        except Exception:  # noqa: BLE001 - it is tried again
            self._failed[uid] = "the operator failed; report it, with the operator's log"
            _log.exception("failed to restore control plane %s", control_plane.name)
        self._reported.discard(uid)
        self._context.queues.control_planes.add(("", control_plane.name))

    async def _read_keys(self, control_plane: ControlPlane) -> None:
        opened = await self._open(control_plane)
        # To its end: only then it is known to be the file that was saved.
        async for _ in opened.pairs():
            pass
        self._read[control_plane.metadata.uid or ""] = _keys_in(opened.end().header)

    async def _write(self, control_plane: ControlPlane, *, client: Client) -> int:
        """Write all data, compare them, and say in etcd that they are there; returns the number of keys."""
        opened = await self._open(control_plane)
        start = prefix.checked(DEDICATED_PREFIX)
        token = f"{control_plane.metadata.uid} {secrets.token_hex(8)}".encode()
        found = await client.get(_STATE)
        if found is not None and found.value.startswith(_DONE):
            return 0
        # Data that no restore wrote are not for it to delete.
        before: list[Condition] = (
            [Absent(_STATE), Empty(DEDICATED_PREFIX)] if found is None else [Equals(_STATE, found.value)]
        )
        await client.apply([Put(_STATE, token), DeleteRange(start, prefix.range_end(start))], only_if=before)
        mine = [Equals(_STATE, token)]
        async for pairs in opened.pairs():
            await write_archived(client, DEDICATED_PREFIX, pairs, only_if=mine)
        archived = opened.end()
        if await digest(client, DEDICATED_PREFIX) != archived.digest:
            raise BackupFailed("the data in etcd are not those of the snapshot")
        done = f"{control_plane.metadata.uid} {archived.digest.sha256}".encode()
        await client.apply([Put(_STATE, _DONE + done)], only_if=mine)
        return archived.digest.count

    async def _open(self, control_plane: ControlPlane) -> OpenedSnapshot:
        restore, source = control_plane.status.restore, control_plane.spec.source
        if restore is None or source is None:
            raise BackupFailed("the control plane has no snapshot to begin with")
        if self._storage is None:
            raise BackupFailed("the operator has no storage for snapshots: set etcd.backup.recipients and a storage")
        name = source.identity_secret_ref.name
        try:
            secret = await self._context.client.get(SECRETS, name, namespace=self._context.namespace)
        except NotFound:
            raise BackupFailed(f"there is no Secret {self._context.namespace}/{name} with the private key") from None
        text = data_of(secret).get(_IDENTITY)
        if text is None:
            raise BackupFailed(f"Secret {self._context.namespace}/{name} has no key {_IDENTITY}")
        keys = identities(text.decode(errors="replace"))
        return OpenedSnapshot(self._storage, restore.location, keys=keys, sha256=restore.sha256)


def _name(control_plane: ControlPlane) -> str:
    restore = control_plane.status.restore
    return restore.snapshot if restore is not None else ""


def _failure(control_plane: ControlPlane, why: str) -> ConditionError:
    return ConditionError(Reason.RESTORE_FAILED, f"failed to restore snapshot {_name(control_plane)}: {why}")


def _keys_in(header: Mapping[str, Any]) -> dict[str, bytes]:
    try:
        return {name: base64.b64decode(content) for name, content in header["keys"].items()}
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise BackupFailed("it has no keys of a control plane") from error
