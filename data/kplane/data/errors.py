"""Errors of kplane.data. `DataError` is their root."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kplane.data.owner import Owner

__all__ = [
    "AlreadyExists",
    "ArchiveDamaged",
    "Compacted",
    "ConditionNotMet",
    "CredentialsUnusable",
    "DataError",
    "DataLost",
    "EtcdError",
    "InvalidPrefix",
    "LearnerBehind",
    "NoRoom",
    "NotFound",
    "NotOwned",
    "PermissionDenied",
    "RevisionTooFar",
    "SnapshotDamaged",
    "TimedOut",
    "TooLarge",
    "Unreachable",
    "ValueEncrypted",
    "ValueUnreadable",
]


class DataError(Exception):
    """Root of all errors of this package."""


class InvalidPrefix(DataError):
    """A prefix does not have the form `/<segment>/` with at least one segment, or its range has no end."""


class ConditionNotMet(DataError):
    """A transaction changed no key, because one of its conditions does not hold."""


class NotOwned(DataError):
    """A prefix does not belong to the caller: it has another owner, or keys and no owner key."""

    def __init__(self, prefix: str, owner: Owner | None) -> None:
        super().__init__(f"{prefix} belongs to {owner.label}" if owner else f"{prefix} has keys, and no owner")
        self.prefix: Final = prefix
        self.owner: Final = owner


class DataLost(DataError):
    """A prefix no longer has the data that were served before: their identity differs, or the data are missing."""

    def __init__(self, prefix: str, *, expected: str | None, found: str | None, cluster_uid: str | None = None) -> None:
        if cluster_uid is not None:
            description = f"data of another cluster, whose namespace kube-system has uid {cluster_uid}"
        elif found is None:
            description = "no data" if expected is None else f"no data of identity {expected}"
        else:
            description = "no data" if expected in {None, found} else f"data of identity {found} instead of {expected}"
        super().__init__(f"{prefix} has {description}")


class CredentialsUnusable(DataError):
    """A file with a certificate or key is missing, empty, or open to other users."""


class ValueUnreadable(DataError):
    """A stored value is not protobuf or JSON, the formats of an API server without encryption."""


class ValueEncrypted(ValueUnreadable):
    """A stored value is encrypted at rest by an API server, and can only be read with the API server's key."""


class SnapshotDamaged(DataError):
    """A snapshot is incomplete, or its SHA-256 differs from the hash that etcd sent."""


class ArchiveDamaged(DataError):
    """An archive is incomplete, or its content differs from the saved keys."""


class RevisionTooFar(DataError):
    """The revision of an etcd is too far below the revision that it must exceed."""

    def __init__(self, endpoint: str, *, revision: int, above: int, most: int) -> None:
        super().__init__(
            f"etcd at {endpoint} is at revision {revision}, and has to be above {above}: that is more than the {most}"
            " revisions that are raised at once"
        )
        self.lacking: Final = above + 1 - revision


class Unreachable(DataError):
    """There is no connection to etcd, or the connection was lost during a call. The call may have taken effect."""


class TimedOut(DataError):
    """Etcd did not answer before the deadline of a call. The call may have taken effect."""


class EtcdError(DataError):
    """Etcd refused a call. The call did not take effect."""


class PermissionDenied(EtcdError):
    """The user lacks a permission, or the client certificate names no user."""


class NotFound(EtcdError):
    """The user, role or member does not exist, or lacks the role or permission to revoke."""


class AlreadyExists(EtcdError):
    """The user, the role or the peer URL of a member exists already."""


class LearnerBehind(EtcdError):
    """The learner has not copied enough data yet to get a vote."""


class Compacted(EtcdError):
    """Etcd has compacted the revision."""


class NoRoom(EtcdError):
    """Etcd is full and refuses all writes, or a copy stopped before etcd was full."""


class TooLarge(EtcdError):
    """An answer exceeds the limit of the connection, or a request exceeds the limit of etcd."""
