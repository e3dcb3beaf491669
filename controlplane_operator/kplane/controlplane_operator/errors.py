"""The root of what the operator raises."""

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
    """Root of the operator's own errors."""


class BackupFailed(OperatorError):
    """A backup was not made, or cannot be opened; the message says why and what to do."""


class FileRefused(BackupFailed):
    """A file of the storage is not what it has to be. It is read again only after a change."""


class BootstrapFailed(OperatorError):
    """A control plane cannot be set up from inside; the message says what is missing."""


class RoleMissing(BootstrapFailed):
    """The ClusterRole that the administrator is to have does not exist in the control plane."""


class BundleInvalid(OperatorError):
    """An add-on's manifests cannot be used; the message says where and what is wrong."""


class KeyspaceError(OperatorError):
    """The shared etcd did not do what was asked; the message says what was asked and what etcd said."""


class ValueNotRead(KeyspaceError):
    """A value in etcd is not as an API server writes it without encryption."""


class PrefixNotOwned(KeyspaceError):
    """A key prefix belongs to another control plane, or has keys that no control plane owns."""

    def __init__(self, error: NotOwned) -> None:
        super().__init__(str(error))
        self.prefix: Final = error.prefix
        self.owner: Final[Owner | None] = error.owner


class PrefixLost(KeyspaceError):
    """The data below a key prefix are not those that were served before."""

    def __init__(self, error: DataLost) -> None:
        super().__init__(str(error))


class TemplateFailed(OperatorError):
    """No template of a control plane could be made; the message says why."""
