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
    """A prefix is empty, does not begin and end with `/`, or names every key."""


class ConditionNotMet(DataError):
    """A transaction changed nothing, because a condition that it was bound to does not hold."""


class NotOwned(DataError):
    """A prefix is not its caller's: it has another owner, or keys and no owner."""

    def __init__(self, prefix: str, owner: Owner | None) -> None:
        super().__init__(f"{prefix} belongs to {owner.label}" if owner else f"{prefix} has keys, and no owner")
        self.prefix: Final = prefix
        self.owner: Final = owner


class DataLost(DataError):
    """The data of a prefix are not those that were served before: they have another identity, or are gone."""

    def __init__(self, prefix: str, *, expected: str | None, found: str | None, cluster_uid: str | None = None) -> None:
        if cluster_uid is not None:
            said = f"data of another cluster, whose namespace kube-system has uid {cluster_uid}"
        elif found is None:
            said = "no data" if expected is None else f"no data of identity {expected}"
        else:
            said = "no data" if expected in {None, found} else f"data of identity {found} instead of {expected}"
        super().__init__(f"{prefix} has {said}")


class CredentialsUnusable(DataError):
    """A file with a certificate or key is missing, empty, or open to other users."""


class ValueUnreadable(DataError):
    """A value is not what an API server writes without encryption: protobuf, or JSON."""


class ValueEncrypted(ValueUnreadable):
    """An API server encrypted a value: to read it takes its key."""


class SnapshotDamaged(DataError):
    """A snapshot is not complete, or not what etcd sent."""


class ArchiveDamaged(DataError):
    """An archive is not complete, or not what was saved."""


class RevisionTooFar(DataError):
    """The revision of an etcd is too far below the one that it has to exceed."""

    def __init__(self, endpoint: str, *, revision: int, above: int, most: int) -> None:
        super().__init__(
            f"etcd at {endpoint} is at revision {revision}, and has to be above {above}: that is more than the {most}"
            " revisions that are raised at once"
        )
        self.lacking: Final = above + 1 - revision


class Unreachable(DataError):
    """No connection to etcd, or the connection was lost during a call: the call may have taken effect."""


class TimedOut(DataError):
    """Etcd did not answer before the deadline of a call: the call may have taken effect."""


class EtcdError(DataError):
    """Etcd refused a call. It did not take effect."""


class PermissionDenied(EtcdError):
    """The user lacks a permission, or the client certificate names no user."""


class NotFound(EtcdError):
    """The user, role or member does not exist, or lacks what is to be taken away."""


class AlreadyExists(EtcdError):
    """The user, role or address of a member exists."""


class LearnerBehind(EtcdError):
    """The learner has not copied enough yet to get a vote."""


class Compacted(EtcdError):
    """Etcd no longer has the revision."""


class NoRoom(EtcdError):
    """Etcd is full and refuses all writes, or a copy has stopped before that."""


class TooLarge(EtcdError):
    """An answer is larger than the connection takes, or a request larger than etcd takes."""
