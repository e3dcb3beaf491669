"""Errors that the operator raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kplane.data import DataLost, NotOwned, Owner

__all__ = [
    "BackupFailed",
    "BootstrapFailed",
    "BundleInvalid",
    "FileRefused",
    "KeyspaceError",
    "OperatorError",
    "PrefixLost",
    "PrefixNotOwned",
    "RoleMissing",
    "TemplateFailed",
    "ValueNotRead",
]


class OperatorError(Exception):
    """Base class of the operator's errors."""


class BackupFailed(OperatorError):
    """A backup was not made, or cannot be opened; the message has the cause and the remedy."""


class FileRefused(BackupFailed):
    """A file of the storage is invalid, and is read again only after a change."""


class BootstrapFailed(OperatorError):
    """A control plane cannot be bootstrapped from inside; the message names the missing object."""


class RoleMissing(BootstrapFailed):
    """The administrator's ClusterRole does not exist in the control plane."""


class BundleInvalid(OperatorError):
    """The manifests of an add-on are invalid; the message has the location and the cause."""


class KeyspaceError(OperatorError):
    """A request to the shared etcd failed; the message has the request and the error of etcd."""


class ValueNotRead(KeyspaceError):
    """A value in etcd differs from the encoding that an API server writes without encryption."""


class PrefixNotOwned(KeyspaceError):
    """A key prefix belongs to another control plane, or has keys that no control plane owns."""

    def __init__(self, error: NotOwned) -> None:
        super().__init__(str(error))
        self.prefix: Final = error.prefix
        self.owner: Final[Owner | None] = error.owner


class PrefixLost(KeyspaceError):
    """The data below a key prefix differ from the data that an API server has served."""

    def __init__(self, error: DataLost) -> None:
        super().__init__(str(error))


class TemplateFailed(OperatorError):
    """A template for control planes could not be made; the message has the cause."""
