"""Errors of kplane.data. `DataError` is their root."""

from __future__ import annotations

__all__ = [
    "AlreadyExists",
    "Compacted",
    "CredentialsUnusable",
    "DataError",
    "EtcdError",
    "InvalidPrefix",
    "NotFound",
    "PermissionDenied",
    "TimedOut",
    "Unreachable",
]


class DataError(Exception):
    """Root of all errors of this package."""


class InvalidPrefix(DataError):
    """A prefix is empty, does not begin and end with `/`, or names every key."""


class CredentialsUnusable(DataError):
    """A file with a certificate or key is missing, empty, or open to other users."""


class Unreachable(DataError):
    """No connection to etcd, or the connection was lost during a call: the call may have taken effect."""


class TimedOut(DataError):
    """Etcd did not answer before the deadline of a call: the call may have taken effect."""


class EtcdError(DataError):
    """Etcd refused a call. It did not take effect."""


class PermissionDenied(EtcdError):
    """The user lacks a permission, or the client certificate names no user."""


class NotFound(EtcdError):
    """The user or role does not exist, or lacks what is to be taken away."""


class AlreadyExists(EtcdError):
    """The user or role exists."""


class Compacted(EtcdError):
    """Etcd no longer has the revision."""
