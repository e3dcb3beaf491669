"""Catalog of snapshots: the storage has an entry with metadata beside the file of each snapshot.

From the entries, the operator of another management cluster creates the ControlPlaneSnapshots again, as Velero's
BackupSyncController does with backups. A user with write access to the storage may be hostile, so entries are
validated.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, AwareDatetime, Field, StringConstraints, ValidationError

from kplane.api import ControlPlaneMode, ControlPlaneSnapshotStatus
from kplane.api.references import NamespaceName, ObjectName
from kplane.api.resource import ApiModel
from kplane.controlplane_operator.backup.storage import Storage, read_small
from kplane.controlplane_operator.errors import BackupFailed, FileRefused

__all__ = ["ArchiveName", "CatalogEntry", "hidden_name", "is_hidden_name", "write_entry"]

_UID: Final = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ARCHIVE: Final = re.compile(rf"controlplane-(?P<name>[a-z0-9][-.a-z0-9]{{0,252}})-(?P<uid>{_UID})\.age")
_HIDDEN: Final = re.compile(rf"hidden-(?P<cluster>{_UID})-(?P<uid>{_UID})")
_LARGEST_BYTES: Final = 64 << 10
"""Maximum size of an entry. An entry has about 1 KiB, and 70 bytes for each recipient."""
_MOST: Final = 1 << 53
"""Maximum of a revision and of sizes. etcd counts revisions with 63 bits, and a restore begins above the revision."""

_Content = bytes
"""Alias of `bytes`, because the entry has a field of that name."""
_Uid = Annotated[str, StringConstraints(pattern=f"^{_UID}$")]
_Version = Annotated[str, StringConstraints(max_length=63, pattern=r"^v?\d+\.\d+\.\d+[-+.0-9A-Za-z]*$")]
_Count = Annotated[int, Field(ge=0, lt=_MOST)]


def _network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


class CatalogEntry(ApiModel):
    """Metadata of a snapshot that a restore needs, and that identifies the snapshot to people."""

    format: Literal[1] = 1
    name: ObjectName
    """The name of the ControlPlaneSnapshot."""
    uid: _Uid
    """The uid of the ControlPlaneSnapshot that wrote the file."""
    control_plane: ObjectName
    control_plane_uid: _Uid = Field(alias="controlPlaneUID")
    completion_time: AwareDatetime
    mode: ControlPlaneMode
    data_store: NamespaceName | None = None
    revision: _Count
    highest_revision: _Count | None = None
    """The highest revision that clients have seen. Absent until the control plane is deleted."""
    keys: _Count
    bytes: _Count
    """Total size of the keys and values, in bytes."""
    sha256: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    """The SHA-256 of the encrypted file."""
    service_cidr: Annotated[str, StringConstraints(max_length=43), AfterValidator(_network)] | None = Field(
        default=None, alias="serviceCIDR"
    )
    kubernetes_version: _Version | None = None
    recipients: Annotated[list[Annotated[str, StringConstraints(max_length=128)]], Field(max_length=100)] = Field(
        default_factory=list
    )
    """Public keys of age whose private keys open the file. Empty if unknown, as for a file of an earlier version."""

    @classmethod
    def of(
        cls,
        archive: ArchiveName,
        status: ControlPlaneSnapshotStatus,
        *,
        control_plane: str,
        recipients: list[str],
    ) -> Self:
        """Describe a completed snapshot. Raises BackupFailed if its status is incomplete."""
        try:
            return cls.model_validate(
                {
                    **status.model_dump(exclude_none=True, include=set(_RECORDED)),
                    "name": archive.name,
                    "uid": archive.uid,
                    "control_plane": control_plane,
                    "recipients": recipients,
                }
            )
        except ValidationError as error:
            raise BackupFailed(f"failed to describe {archive.file} in the catalogue: {_cause(error)}") from error

    @classmethod
    def read(cls, storage: Storage, archive: ArchiveName) -> Self:
        """Read the entry of a file; blocks. Raises BackupFailed, OSError, and FileRefused if the entry is invalid."""
        content = read_small(storage, archive.entry, limit=_LARGEST_BYTES)
        try:
            entry = cls.model_validate_json(content)
        except ValidationError as error:
            raise FileRefused(f"{archive.entry} is not an entry of the catalogue: {_cause(error)}") from error
        if (entry.name, entry.uid) != (archive.name, archive.uid):
            raise FileRefused(f"{archive.entry} is the entry of another file")
        return entry

    def recorded(self) -> dict[str, object]:
        """Return the fields of the entry that belong to a snapshot's status."""
        return {name: getattr(self, name) for name in _RECORDED}

    def encoded(self) -> _Content:
        """Return the entry as JSON, the content of its file."""
        return self.model_dump_json(by_alias=True, exclude_none=True, indent=1).encode() + b"\n"


_RECORDED: Final = (
    "completion_time",
    "control_plane_uid",
    "mode",
    "data_store",
    "revision",
    "highest_revision",
    "keys",
    "bytes",
    "sha256",
    "service_cidr",
    "kubernetes_version",
)


@dataclass(frozen=True, slots=True)
class ArchiveName:
    """Name of a snapshot's file, and of the entry beside the file."""

    name: str
    """Name of the ControlPlaneSnapshot that wrote the file."""
    uid: str
    """Uid of the ControlPlaneSnapshot that wrote the file."""

    @classmethod
    def read(cls, file: str) -> Self | None:
        """Parse the name of a file. Returns None if the file is no snapshot."""
        match = _ARCHIVE.fullmatch(file)
        return cls(match["name"], match["uid"]) if match is not None else None

    @property
    def file(self) -> str:
        """The name of the file."""
        return f"controlplane-{self.name}-{self.uid}.age"

    @property
    def entry(self) -> str:
        """The name of the entry."""
        return f"controlplane-{self.name}-{self.uid}.json"


def hidden_name(archive: ArchiveName, *, cluster: str) -> str:
    """Return the name of the file that keeps a management cluster from importing a snapshot.

    `cluster` is the uid of the management cluster.
    """
    return f"hidden-{cluster}-{archive.uid}"


def is_hidden_name(file: str, *, cluster: str) -> str | None:
    """Return the uid of the snapshot that a file hides from this cluster; None for other files."""
    match = _HIDDEN.fullmatch(file)
    return match["uid"] if match is not None and match["cluster"] == cluster else None


def write_entry(storage: Storage, archive: ArchiveName, content: bytes) -> None:
    """Write the entry of a file; blocks. Raises BackupFailed and OSError."""
    # An operator that was killed may have left a partial entry.
    storage.remove(archive.entry)
    with storage.writer(archive.entry) as file:
        file.write(content)


def _cause(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'JSON'}: {first['msg']}"
